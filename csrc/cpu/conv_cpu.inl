// conv_cpu: causal depthwise convolution, an fma chain from the bias over the taps from the oldest to the newest, then
// SiLU. A work unit is kConvChannels channels of one sequence. Its rows are widened into a history of [row][channel]:
// first the window's newest W-1 columns, then the tokens, so that tap j of token t is history row t + j. In a tree the
// taps of a token are found by walking to its ancestors instead.

struct ConvUnit {
  const ConvParams& p;
  int64_t n, c0, channels;      // sequence, first channel, channels
  int64_t batch, first, count;  // its rows

  ConvUnit(const ConvParams& p, const Rows& rows, int64_t index) : p(p) {
    const int64_t blocks = (p.channels + kConvChannels - 1) / kConvChannels;
    n = index / blocks;
    c0 = index % blocks * kConvChannels;
    channels = min64(kConvChannels, p.channels - c0);
    batch = rows.batch(n);
    first = rows.first(n);
    count = rows.count(n);
  }
  int64_t row(const int64_t (&stride)[3], int64_t t) const { return batch * stride[0] + (first + t) * stride[1] + c0; }
  void load_row(int64_t t, float* out) const { widen(p.x, row(p.x.stride, t), 1, channels, out); }
  void store_row(int64_t t, const float* y) const { narrow(p.y, row(p.y.stride, t), 1, channels, y); }
};

// The window of channels [c0, c0 + channels) after `count` rows of x: column j becomes element count + j of
// (old window, rows). In place the reads stay ahead of the writes. row_of(i) is where row i's channel c0 lies in x.
template <class S, class X, class RowOf>
void slide_window(const X* x, RowOf row_of, int64_t count, const S* old_state, const int64_t (&old_stride)[3], S* state,
                  const int64_t (&stride)[3], int64_t channels, int64_t window) {
  const int64_t kept = max64(0, window - count);
  for (int64_t c = 0; c < channels; ++c) {
    for (int64_t j = 0; j < kept; ++j) {
      state[c * stride[1] + j * stride[2]] =
          old_state != nullptr ? old_state[c * old_stride[1] + (count + j) * old_stride[2]] : S{};
    }
  }
  for (int64_t j = kept; j < window; ++j) {
    const X* row = x + row_of(count + j - window);
    for (int64_t c = 0; c < channels; ++c) state[c * stride[1] + j * stride[2]] = from_f32<S>(to_f32(row[c]));
  }
}
// old_state.data may be nullptr: the old window is zeros. The states hold x's dtype, or float32.
template <class RowOf>
void slide_window(const View<3>& x, RowOf row_of, int64_t count, const View<3>& old_state, const OutView<3>& state,
                  int64_t slot, int64_t c0, int64_t channels, int64_t window) {
  const auto slide = [&](auto s, auto e) {
    using S = decltype(s);
    using X = decltype(e);
    const S* old_data = static_cast<const S*>(old_state.data);
    if (old_data != nullptr) old_data += slot * old_state.stride[0] + c0 * old_state.stride[1];
    S* data = static_cast<S*>(state.data) + slot * state.stride[0] + c0 * state.stride[1];
    slide_window<S, X>(static_cast<const X*>(x.data), row_of, count, old_data, old_state.stride, data, state.stride,
                       channels, window);
  };
  const bool wide_state = state.dtype == DType::f32;
  switch (x.dtype) {
    case DType::f32: return slide(float{}, float{});
    case DType::bf16: return wide_state ? slide(float{}, bf16{}) : slide(bf16{}, bf16{});
    case DType::f16: return wide_state ? slide(float{}, f16{}) : slide(f16{}, f16{});
  }
}

// y = activation(bias + Σ_j w_j x_j), oldest tap first; w, x and y are rows of kConvChannels.
inline void convolve(const float* const* taps, const float* weights, const float* bias, int64_t width,
                     Activation activation, float* y) {
  for (int c = 0; c < kConvChannels; c += kLanes) {
    Vec sum = load(bias + c);
    for (int64_t j = 0; j < width; ++j) sum = fma(load(weights + j * kConvChannels + c), load(taps[j] + c), sum);
    store(y + c, sum);
  }
  if (activation == Activation::silu) {
    for (int c = 0; c < kConvChannels; ++c) y[c] = exact::silu(y[c]);
  }
}

// out[j][c] = row c's column first + j, widened.
inline void widen_columns(const View<3>& state, int64_t offset, int64_t first, int64_t columns, int64_t channels,
                          float* out) {
  for (int64_t j = 0; j < columns; ++j) {
    widen(state, offset + (first + j) * state.stride[2], state.stride[1], channels, out + j * kConvChannels);
  }
}

void conv_unit(const ConvUnit& unit, float* scratch) {
  const ConvParams& p = unit.p;
  const int64_t width = p.width, past = width - 1;
  float* weights = scratch;                       // [W][kConvChannels]
  float* bias = weights + width * kConvChannels;  // [kConvChannels]
  float* history = bias + kConvChannels;          // [W-1 + stage][kConvChannels]
  const int64_t stage_tokens = p.parents ? unit.count : kConvStageTokens;
  const float** taps = reinterpret_cast<const float**>(history + (past + stage_tokens) * kConvChannels);  // [W]
  float y[kConvChannels] = {};

  const int64_t slot = slot_of(p.state_indices, unit.n, p.slots);
  if (slot < 0) {
    for (int64_t t = 0; t < unit.count; ++t) unit.store_row(t, y);
    return;
  }
  const View<3> old_state = starts_from_state(p.has_initial_state, unit.n) ? p.state_in : View<3>{};

  __builtin_memset(scratch, 0, static_cast<size_t>((width + 1 + past + stage_tokens) * kConvChannels) * sizeof(float));
  const View<3> weight = {p.weight.data, p.weight.dtype, {0, p.weight.stride[0], p.weight.stride[1]}};
  widen_columns(weight, unit.c0 * weight.stride[1], 0, width, unit.channels, weights);
  if (p.bias) widen(p.bias, unit.c0 * p.bias.stride[0], p.bias.stride[0], unit.channels, bias);
  if (old_state) {
    widen_columns(old_state, slot * old_state.stride[0] + unit.c0 * old_state.stride[1], p.window - past, past,
                  unit.channels, history);
  }
  // From here on the history holds all that the outputs need of the old window.
  if (p.state_out) {
    slide_window(
        p.x, [&](int64_t i) { return unit.row(p.x.stride, i); }, unit.count, old_state, p.state_out, slot, unit.c0,
        unit.channels, p.window);
  }

  for (int64_t t0 = 0; t0 < unit.count; t0 += stage_tokens) {
    const int64_t staged = min64(stage_tokens, unit.count - t0);
    for (int64_t i = 0; i < staged; ++i) unit.load_row(t0 + i, history + (past + i) * kConvChannels);
    for (int64_t i = 0; i < staged; ++i) {
      int64_t row = past + i;
      for (int64_t j = width - 1; j >= 0; --j) {
        taps[j] = history + row * kConvChannels;
        const bool branches = p.parents && row >= past;
        row = branches ? past + parent_of(p.parents, unit.n, row - past) : row - 1;
      }
      convolve(taps, weights, bias, width, p.activation, y);
      unit.store_row(t0 + i, y);
    }
    __builtin_memmove(history, history + staged * kConvChannels,
                      static_cast<size_t>(past * kConvChannels) * sizeof(float));
  }
}

void conv_units(const ConvParams& p, const Rows& rows, float* scratch, int64_t begin, int64_t end) {
  for (int64_t index = begin; index < end; ++index) conv_unit(ConvUnit(p, rows, index), scratch);
}

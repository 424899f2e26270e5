// conv_commit_cpu: a convolution window after the accepted rows of an earlier verify. A work unit is kConvChannels
// channels of one sequence and layer.

void conv_commit_units(const ConvCommitParams& p, int64_t begin, int64_t end) {
  const AcceptedShape& window = p.accepted;
  const int64_t blocks = (p.channels + kConvChannels - 1) / kConvChannels;
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t c0 = unit % blocks * kConvChannels, n = unit / blocks % window.sequences;
    const ConvCommitLayer& layer = p.layers[unit / blocks / window.sequences];
    const int64_t slot = slot_of(window.state_indices, n, p.slots);
    if (slot < 0) continue;
    int64_t count = accepted_count(window, n);
    for (int64_t i = 0; i < count; ++i) {
      if (accepted_row(window, n, i) < 0) count = i;
    }
    if (count == 0) continue;
    const auto row_of = [&](int64_t i) {
      return n * layer.x.stride[0] + accepted_row(window, n, i) * layer.x.stride[1] + c0;
    };
    const View<3> old_state = {
        layer.state.data, layer.state.dtype, {layer.state.stride[0], layer.state.stride[1], layer.state.stride[2]}};
    slide_window(layer.x, row_of, count, old_state, layer.state, slot, c0, min64(kConvChannels, p.channels - c0),
                 p.window);
  }
}

// rec_cpu, verify_cpu, commit_verify_cpu: the gated delta rule token by token in the exact order (docs/math.md, the
// recurrence). A work unit is a key head of one sequence and some of the tiles that read it, a tile being kColumns
// value columns of one value head. Keys and queries are widened and normalised once for all of them, a stage of tokens
// at a time; through a stage a tile's state stays in the first-level cache (32 KB at K = 128 with 64 columns).

struct KeyHead {
  const RecurrenceJob& job;
  const RecurrenceParams& p;
  int64_t n, index;             // sequence, key head
  int64_t batch, first, count;  // the sequence's rows

  KeyHead(const RecurrenceJob& job, int64_t n, int64_t index)
      : job(job),
        p(*job.params),
        n(n),
        index(index),
        batch(job.rows.batch(n)),
        first(job.rows.first(n)),
        count(job.rows.count(n)) {}

  template <int rank>
  int64_t row(const int64_t (&stride)[rank], int64_t t, int64_t head) const {
    return batch * stride[0] + (first + t) * stride[1] + head * stride[2];
  }
  void load_row(const View<4>& x, int64_t t, float* out) const {
    widen(x, row(x.stride, t, index), 1, p.heads.key_dim, out);
    if (p.qk_l2norm) l2_normalise(out, p.heads.key_dim, p.l2_eps);
  }
};

// One value head's columns [c0, c0 + kColumns).
struct HeadTile {
  const KeyHead& key_head;
  const RecurrenceParams& p;
  int64_t h, c0;
  bool writes_k_log;  // one tile of a key head writes the keys

  // The tiles of a key head are numbered value head by value head.
  HeadTile(const KeyHead& key_head, int64_t number) : key_head(key_head), p(key_head.p) {
    const int64_t tiles = p.heads.value_dim / kColumns, group = p.heads.value_heads / p.heads.key_heads;
    const int64_t j = number / tiles;
    c0 = number % tiles * kColumns;
    h = p.heads.head_map == HeadMap::grouped ? key_head.index * group + j : key_head.index + j * p.heads.key_heads;
    writes_k_log = number == 0;
  }

  template <int rank>
  int64_t row(const int64_t (&stride)[rank], int64_t t) const {
    return key_head.row(stride, t, h);
  }
  float g(int64_t t) const { return static_cast<const float*>(p.g.data)[row(p.g.stride, t)]; }
  float beta(int64_t t) const {
    float x = 0.0f;
    widen(p.beta, row(p.beta.stride, t), 1, 1, &x);
    return x;
  }
  void load_value(int64_t t, float* out) const { widen(p.v, row(p.v.stride, t) + c0, 1, kColumns, out); }

  void store_output(int64_t t, float* o) const {
    const Vec scale = broadcast(p.scale);
    for (int c = 0; c < kColumns; c += kLanes) store(o + c, load(o + c) * scale);
    narrow(p.o, row(p.o.stride, t) + c0, 1, kColumns, o);
  }
  void store_logs(int64_t t, float g, const float* k, const float* delta) const {
    const LogViews& logs = p.logs;
    if (!logs.d) return;
    copy_columns(delta, static_cast<float*>(logs.d.data) + row(logs.d.stride, t) + c0);
    if (c0 == 0) static_cast<float*>(logs.g.data)[row(logs.g.stride, t)] = g;
    if (writes_k_log) {
      float* k_row = static_cast<float*>(logs.k.data) + key_head.row(logs.k.stride, t, key_head.index);
      __builtin_memcpy(k_row, k, static_cast<size_t>(p.heads.key_dim) * sizeof(float));
    }
  }
  // A skipped sequence: output and logs are zero.
  void store_zeros() const {
    const float zeros[kMaxHeadElements] = {};
    for (int64_t t = 0; t < key_head.count; ++t) {
      narrow(p.o, row(p.o.stride, t) + c0, 1, kColumns, zeros);
      store_logs(t, 0.0f, zeros, zeros);
    }
  }
};

// δ = β (v − α u)
inline void correction(float alpha, float beta, const float* u, const float* v, float* delta) {
  const Vec minus_alpha = broadcast(-alpha), b = broadcast(beta);
  for (int c = 0; c < kColumns; c += kLanes) store(delta + c, fma(minus_alpha, load(u + c), load(v + c)) * b);
}

// Tokens [t0, t0 + staged) of a chain: token t follows t-1. `from` holds the state before them and `to` gets the one
// after them; in between they work on `tile`. `from` and `to` may each be the pool itself. u is that of token t0, and
// afterwards that of token t0 + staged, whose key is the last one in k where there is such a token.
template <int K>
void run_chain(const HeadTile& head, int64_t t0, int64_t staged, const float* k, const float* q, const float* v,
               const Tile& from, const Tile& tile, const Tile& to, float* u, float* o) {
  alignas(64) float delta[kColumns];
  for (int64_t i = 0; i < staged; ++i) {
    const int64_t t = t0 + i;
    const float g = head.g(t), alpha = exact::exp(g);
    correction(alpha, head.beta(t), u, v + i * kColumns, delta);
    head.store_logs(t, g, k + i * K, delta);
    const Tile& source = i == 0 ? from : tile;
    const Tile& target = i + 1 == staged ? to : tile;
    if (t + 1 < head.key_head.count) {
      tile_step<K, true>(source, target, alpha, k + i * K, delta, q + i * K, o + i * kColumns, k + (i + 1) * K, u);
    } else {
      tile_step<K, false>(source, target, alpha, k + i * K, delta, q + i * K, o + i * kColumns, nullptr, nullptr);
    }
  }
}

// A tree: token t follows parents[t]. The tile holds the state after token t-1; where t follows another node, the state
// there was kept when it was made.
template <int K>
void run_tree(const HeadTile& head, const float* k, const float* q, const float* v, const Tile& tile, float* kept,
              float* o) {
  alignas(64) float u[kColumns], delta[kColumns];
  const int64_t T = head.key_head.count;
  const auto parent = [&](int64_t t) { return parent_of(head.p.parents, head.key_head.n, t); };
  bool is_kept[kMaxWindowTokens + 1] = {};  // node + 1: the root comes first
  for (int64_t t = 0; t < T; ++t) {
    if (parent(t) != t - 1) is_kept[parent(t) + 1] = true;
  }
  const auto kept_tile = [&](int64_t node) { return tile_in_scratch(kept + (node + 1) * K * kColumns, K); };
  if (is_kept[0]) tile_copy(tile, kept_tile(-1), K);
  for (int64_t t = 0; t < T; ++t) {
    if (parent(t) != t - 1) tile_copy(kept_tile(parent(t)), tile, K);
    const float g = head.g(t), alpha = exact::exp(g);
    tile_dot<K>(tile, k + t * K, u);
    correction(alpha, head.beta(t), u, v + t * kColumns, delta);
    head.store_logs(t, g, k + t * K, delta);
    tile_step<K, false>(tile, tile, alpha, k + t * K, delta, q + t * K, o + t * kColumns, nullptr, nullptr);
    if (is_kept[t + 1]) tile_copy(tile, kept_tile(t), K);
  }
}

// Where a sequence's states come from and go to.
struct Ends {
  const RecurrenceParams& p;
  const CommitParams* commit;
  int64_t n, slot;
  bool from_zeros;
  // The first token of a chain reads the pool itself where the layout allows it, and the last one writes it.
  bool reads_pool, writes_pool;

  explicit Ends(const KeyHead& key_head) : p(key_head.p), commit(key_head.job.commit), n(key_head.n) {
    // The pool that is read or written; one without slots has no address either, and every sequence is skipped.
    slot = slot_of(p.state_indices, n, max64(p.state_in.slots, p.state_out.slots));
    from_zeros = !p.state_in || !starts_from_state(p.has_initial_state, n);
    const bool is_chain = !p.parents && key_head.count > 0;
    reads_pool = is_chain && !from_zeros && commit == nullptr && p.state_in.value_stride == 1;
    writes_pool = is_chain && p.state_out && p.state_out.value_stride == 1;
  }

  StateTile in(const StateView& pool, const HeadTile& head) const { return state_tile(pool, slot, head.h, head.c0); }

  // The state before the first token, unless that reads the pool itself.
  void start(const HeadTile& head, const Tile& tile) const {
    const int64_t K = p.heads.key_dim;
    if (from_zeros) {
      tile_zero(tile, K);
    } else if (!reads_pool) {
      in(p.state_in, head).load(tile, K);
    }
    if (commit != nullptr) {
      replay_accepted(*commit, commit->layers[0].logs, n, head.h, head.c0, tile);
      if (accepted_count(commit->window, n) > 0) in(commit->layers[0].state, head).save(tile, K);
    }
  }
  // The state after the last token, unless that wrote the pool itself.
  void finish(const HeadTile& head, const Tile& tile) const {
    if (p.state_out && !writes_pool) in(p.state_out, head).save(tile, p.heads.key_dim);
  }
};

// Tiles [begin, end) of a key head.
template <int K>
void run_key_head(const KeyHead& key_head, int64_t begin, int64_t end) {
  const RecurrenceParams& p = key_head.p;
  const RecurrenceLayout layout(p, kColumns, end - begin);
  float* scratch = key_head.job.scratch;
  float* k = scratch + layout.keys;
  float* q = scratch + layout.queries;
  const Ends ends(key_head);
  if (ends.slot < 0) {
    for (int64_t number = begin; number < end; ++number) HeadTile(key_head, number).store_zeros();
    return;
  }
  // Within one stage a tile is done before the next one begins: they share the scratch memory that is in the cache.
  const bool one_stage = key_head.count <= layout.stage_tokens;
  const auto tile_of = [&](int64_t number) {
    return tile_in_scratch(scratch + layout.tiles + (one_stage ? 0 : number - begin) * K * kColumns, K);
  };
  const auto staged_row = [&](int64_t field, int64_t number, int64_t i) {
    return scratch + field + ((number - begin) * layout.stage_tokens + i) * kColumns;
  };
  for (int64_t number = begin; key_head.count == 0 && number < end; ++number) {
    const HeadTile head(key_head, number);
    ends.start(head, tile_of(number));
    ends.finish(head, tile_of(number));
  }

  for (int64_t t0 = 0; t0 < key_head.count; t0 += layout.stage_tokens) {
    const int64_t staged = min64(layout.stage_tokens, key_head.count - t0);
    const bool is_first = t0 == 0, is_last = t0 + staged == key_head.count;
    // A token's values and outputs lie side by side for all tiles: read and written row by row, they are asked of the
    // memory in bursts and not one by one in the middle of the arithmetic.
    for (int64_t i = 0; i < staged + (is_last ? 0 : 1); ++i) key_head.load_row(p.k, t0 + i, k + i * K);
    for (int64_t i = 0; i < staged; ++i) key_head.load_row(p.q, t0 + i, q + i * K);
    for (int64_t i = 0; i < staged; ++i) {
      for (int64_t number = begin; number < end; ++number) {
        HeadTile(key_head, number).load_value(t0 + i, staged_row(layout.values, number, i));
      }
    }
    for (int64_t number = begin; number < end; ++number) {
      const HeadTile head(key_head, number);
      const Tile tile = tile_of(number);
      const float* v = staged_row(layout.values, number, 0);
      float* o = staged_row(layout.outputs, number, 0);
      float* u = scratch + layout.u + (number - begin) * kColumns;
      if (is_first) ends.start(head, tile);
      if (p.parents) {
        run_tree<K>(head, k, q, v, tile, scratch + layout.kept, o);
      } else {
        const Tile from = is_first && ends.reads_pool ? ends.in(p.state_in, head).as_tile() : tile;
        const Tile to = is_last && ends.writes_pool ? ends.in(p.state_out, head).as_tile() : tile;
        if (is_first) tile_dot<K>(from, k, u);
        run_chain<K>(head, t0, staged, k, q, v, from, tile, to, u, o);
      }
      if (is_last) ends.finish(head, tile);
    }
    for (int64_t i = 0; i < staged; ++i) {
      for (int64_t number = begin; number < end; ++number) {
        HeadTile(key_head, number).store_output(t0 + i, staged_row(layout.outputs, number, i));
      }
    }
  }
}

void recurrence_units(const RecurrenceJob& job, int64_t begin, int64_t end) {
  const HeadShape& heads = job.params->heads;
  const int64_t tiles = heads.value_heads / heads.key_heads * (heads.value_dim / kColumns);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t part = unit % job.parts;
    const KeyHead key_head(job, unit / job.parts / heads.key_heads, unit / job.parts % heads.key_heads);
    const int64_t first = tiles * part / job.parts, last = tiles * (part + 1) / job.parts;
    switch (heads.key_dim) {
      case 64: run_key_head<64>(key_head, first, last); break;
      case 128: run_key_head<128>(key_head, first, last); break;
      default: run_key_head<256>(key_head, first, last); break;
    }
  }
}

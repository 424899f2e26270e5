// rec_cpu, verify_cpu, commit_verify_cpu: the gated delta rule token by token in the exact order (docs/math.md, the
// recurrence). A work unit is some of one sequence's tiles, a tile being kColumns value columns of one value head. All
// that the tokens bring is widened, and keys and queries normalised, for all tiles of the unit at once, a stage of
// tokens at a time; through a stage a tile's state stays in the first-level cache (32 KB at K = 128 with 64 columns).

struct Sequence {
  const RecurrenceParams& p;
  const CommitParams* commit;
  int64_t n;
  int64_t batch, first, count;  // its rows

  Sequence(const RecurrenceJob& job, int64_t n)
      : p(*job.params),
        commit(job.commit),
        n(n),
        batch(job.rows.batch(n)),
        first(job.rows.first(n)),
        count(job.rows.count(n)) {}

  template <int rank>
  int64_t row(const int64_t (&stride)[rank], int64_t t, int64_t head) const {
    return batch * stride[0] + (first + t) * stride[1] + head * stride[2];
  }
};

// One value head's columns [c0, c0 + kColumns).
struct HeadTile {
  const Sequence* sequence = nullptr;
  int64_t key_head = 0, h = 0, c0 = 0;
  bool writes_k_log = false;  // one tile of a key head writes the keys

  HeadTile() = default;
  // The tiles of a sequence are numbered key head by key head, within it value head by value head.
  HeadTile(const Sequence& sequence, int64_t number) : sequence(&sequence) {
    const HeadShape& heads = sequence.p.heads;
    const int64_t tiles = heads.value_dim / kColumns, group = heads.value_heads / heads.key_heads;
    const int64_t head = number / tiles, j = head % group;
    key_head = head / group;
    c0 = number % tiles * kColumns;
    h = heads.head_map == HeadMap::grouped ? head : key_head + j * heads.key_heads;
    writes_k_log = c0 == 0 && j == 0;
  }

  const RecurrenceParams& p() const { return sequence->p; }
  template <int rank>
  int64_t row(const int64_t (&stride)[rank], int64_t t) const {
    return sequence->row(stride, t, h);
  }
  void store_logs(int64_t t, float g, const float* k, const float* delta) const {
    const LogViews& logs = p().logs;
    if (!logs.d) return;
    copy_columns(delta, static_cast<float*>(logs.d.data) + row(logs.d.stride, t) + c0);
    if (c0 == 0) static_cast<float*>(logs.g.data)[row(logs.g.stride, t)] = g;
    if (writes_k_log) {
      float* k_row = static_cast<float*>(logs.k.data) + sequence->row(logs.k.stride, t, key_head);
      __builtin_memcpy(k_row, k, static_cast<size_t>(p().heads.key_dim) * sizeof(float));
    }
  }
  // A skipped sequence: output and logs are zero.
  void store_zeros() const {
    const float zeros[kMaxHeadElements] = {};
    for (int64_t t = 0; t < sequence->count; ++t) {
      narrow(p().o, row(p().o.stride, t) + c0, 1, kColumns, zeros);
      store_logs(t, 0.0f, zeros, zeros);
    }
  }
};

// δ = β (v − α u)
inline void correction(float alpha, float beta, const float* u, const float* v, float* delta) {
  const Vec minus_alpha = broadcast(-alpha), b = broadcast(beta);
  for (int c = 0; c < kColumns; c += kLanes) store(delta + c, fma(minus_alpha, load(u + c), load(v + c)) * b);
}

// What a tile's tokens need, token by token from the stage's first one on.
struct Stage {
  const float *k, *q;             // [tokens][K]; a chain's k also has the row after the last token
  const float *g, *alpha, *beta;  // [tokens]; alpha = exp(g)
  float* vo;                      // [tokens][kColumns]: a token's values until its outputs replace them
};

// Tokens [t0, t0 + staged) of a chain: token t follows t-1. `from` holds the state before them and `to` gets the one
// after them; in between they work on `tile`. `from` and `to` may each be the pool itself. u is that of token t0, and
// afterwards that of token t0 + staged, whose key is the last one in k where there is such a token.
template <int K>
void run_chain(const HeadTile& head, int64_t t0, int64_t staged, const Stage& stage, const Tile& from, const Tile& tile,
               const Tile& to, int64_t ahead, float* u) {
  alignas(64) float delta[kColumns];
  for (int64_t i = 0; i < staged; ++i) {
    const float *k = stage.k + i * K, *q = stage.q + i * K;
    float* vo = stage.vo + i * kColumns;
    correction(stage.alpha[i], stage.beta[i], u, vo, delta);
    head.store_logs(t0 + i, stage.g[i], k, delta);
    const bool is_end = i == 0 || i + 1 == staged, has_next = t0 + i + 1 < head.sequence->count;
    const Tile& source = i == 0 ? from : tile;
    const Tile& target = i + 1 == staged ? to : tile;
    if (!is_end) {
      scratch_step<K, true>(tile.data, stage.alpha[i], k, delta, q, vo, k + K, u);
    } else if (has_next) {
      end_step<K, true>(source, target, ahead, stage.alpha[i], k, delta, q, vo, k + K, u);
    } else {
      end_step<K, false>(source, target, ahead, stage.alpha[i], k, delta, q, vo, nullptr, nullptr);
    }
  }
}

// A tree: token t follows parents[t]. The tile holds the state after token t-1; where t follows another node, the state
// there was kept when it was made.
template <int K>
void run_tree(const HeadTile& head, const Stage& stage, const Tile& tile, float* kept) {
  alignas(64) float u[kColumns], delta[kColumns];
  const int64_t T = head.sequence->count;
  const auto parent = [&](int64_t t) { return parent_of(head.p().parents, head.sequence->n, t); };
  bool is_kept[kMaxWindowTokens + 1] = {};  // node + 1: the root comes first
  for (int64_t t = 0; t < T; ++t) {
    if (parent(t) != t - 1) is_kept[parent(t) + 1] = true;
  }
  const auto kept_tile = [&](int64_t node) { return tile_in_scratch(kept + (node + 1) * K * kColumns, K); };
  if (is_kept[0]) tile_copy(tile, kept_tile(-1), K);
  for (int64_t t = 0; t < T; ++t) {
    if (parent(t) != t - 1) tile_copy(kept_tile(parent(t)), tile, K);
    const float *k = stage.k + t * K, *q = stage.q + t * K;
    float* vo = stage.vo + t * kColumns;
    tile_dot<K>(tile, k, u);
    correction(stage.alpha[t], stage.beta[t], u, vo, delta);
    head.store_logs(t, stage.g[t], k, delta);
    scratch_step<K, false>(tile.data, stage.alpha[t], k, delta, q, vo, nullptr, nullptr);
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

  explicit Ends(const Sequence& sequence) : p(sequence.p), commit(sequence.commit), n(sequence.n) {
    // The pool that is read or written; one without slots has no address either, and every sequence is skipped.
    slot = slot_of(p.state_indices, n, max64(p.state_in.slots, p.state_out.slots));
    from_zeros = !p.state_in || !starts_from_state(p.has_initial_state, n);
    const bool is_chain = !p.parents && sequence.count > 0;
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

// The keys or queries of tokens [t0, t0 + tokens) and `count` key heads into [head][capacity][K].
template <int K>
void stage_keys(const Sequence& sequence, const View<4>& view, int64_t t0, int64_t tokens, int64_t first_head,
                int64_t count, int64_t capacity, float* out) {
  const RecurrenceParams& p = sequence.p;
  // All rows are asked of the memory before the first one is normalised.
  with_type(view, [&](auto* x) {
    for (int64_t i = 0; i < tokens; ++i) {
      for (int64_t j = 0; j < count; ++j) {
        widen_from(x + sequence.row(view.stride, t0 + i, first_head + j), 1, K, out + (j * capacity + i) * K);
      }
    }
  });
  for (int64_t j = 0; p.qk_l2norm && j < count; ++j) {
    for (int64_t i = 0; i < tokens; ++i) l2_normalise(out + (j * capacity + i) * K, K, p.l2_eps);
  }
}

// Log decays, decays and betas of tokens [t0, t0 + tokens) into [tile][3][capacity].
void stage_gates(const HeadTile* heads, int64_t count, int64_t t0, int64_t tokens, int64_t capacity, float* out) {
  const RecurrenceParams& p = heads[0].p();
  const auto* log_decay = static_cast<const float*>(p.g.data);
  with_type(p.beta, [&](auto* beta) {
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < count; ++i) {
        out[3 * i * capacity + t] = log_decay[heads[i].row(p.g.stride, t0 + t)];
        out[(3 * i + 2) * capacity + t] = to_f32(beta[heads[i].row(p.beta.stride, t0 + t)]);
      }
    }
  });
  for (int64_t i = 0; i < count; ++i) {
    const float* g = out + 3 * i * capacity;
    float* alpha = out + (3 * i + 1) * capacity;
#pragma GCC ivdep
    for (int64_t t = 0; t < tokens; ++t) alpha[t] = exact::exp(g[t]);
  }
}

// Tiles [begin, end) of a sequence, at most kMaxUnitTiles.
template <int K>
void run_unit(const Sequence& sequence, float* scratch, int64_t begin, int64_t end) {
  const RecurrenceParams& p = sequence.p;
  const int64_t count = end - begin;
  const RecurrenceLayout layout(p, kColumns, count);
  HeadTile heads[kMaxUnitTiles];
  for (int64_t i = 0; i < count; ++i) heads[i] = HeadTile(sequence, begin + i);
  const Ends ends(sequence);
  if (ends.slot < 0) {
    for (int64_t i = 0; i < count; ++i) heads[i].store_zeros();
    return;
  }
  // Within one stage a tile is done before the next one begins: they share the scratch memory that is in the cache.
  const bool one_stage = sequence.count <= layout.stage_tokens;
  const auto tile_of = [&](int64_t i) {
    return tile_in_scratch(scratch + layout.tiles + (one_stage ? 0 : i) * K * kColumns, K);
  };
  for (int64_t i = 0; sequence.count == 0 && i < count; ++i) {
    ends.start(heads[i], tile_of(i));
    ends.finish(heads[i], tile_of(i));
  }

  const int64_t first_key = heads[0].key_head, keys = heads[count - 1].key_head - first_key + 1;
  const int64_t capacity = layout.stage_tokens, key_rows = capacity + 1;
  for (int64_t t0 = 0; t0 < sequence.count; t0 += layout.stage_tokens) {
    const int64_t staged = min64(layout.stage_tokens, sequence.count - t0);
    const bool is_first = t0 == 0, is_last = t0 + staged == sequence.count;
    // Token by token: a token's rows of neighbouring heads lie side by side.
    stage_keys<K>(sequence, p.k, t0, staged + (is_last ? 0 : 1), first_key, keys, key_rows, scratch + layout.keys);
    stage_keys<K>(sequence, p.q, t0, staged, first_key, keys, key_rows, scratch + layout.queries);
    float *rows = scratch + layout.rows, *gates = scratch + layout.gates;
    stage_gates(heads, count, t0, staged, capacity, gates);
    with_type(p.v, [&](auto* v) {
      for (int64_t t = 0; t < staged; ++t) {
        for (int64_t i = 0; i < count; ++i) {
          widen_from(v + heads[i].row(p.v.stride, t0 + t) + heads[i].c0, 1, kColumns,
                     rows + (i * capacity + t) * kColumns);
        }
      }
    });
    for (int64_t i = 0; i < count; ++i) {
      const HeadTile& head = heads[i];
      const Tile tile = tile_of(i);
      const int64_t key_offset = (head.key_head - first_key) * key_rows * K;
      const float* gate = gates + i * 3 * capacity;
      const Stage stage{scratch + layout.keys + key_offset,
                        scratch + layout.queries + key_offset,
                        gate,
                        gate + capacity,
                        gate + 2 * capacity,
                        rows + i * capacity * kColumns};
      float* u = scratch + layout.u + i * kColumns;
      if (is_first) ends.start(head, tile);
      if (p.parents) {
        run_tree<K>(head, stage, tile, scratch + layout.kept);
      } else {
        const Tile from = is_first && ends.reads_pool ? ends.in(p.state_in, head).as_tile() : tile;
        const Tile to = is_last && ends.writes_pool ? ends.in(p.state_out, head).as_tile() : tile;
        // A lone token is a read and a write of the pool: while it computes, the next tile comes closer.
        const bool one_token = sequence.count == 1 && ends.reads_pool && i + 1 < count;
        const int64_t ahead = one_token ? ends.in(p.state_in, heads[i + 1]).data - from.data : 0;
        if (is_first) tile_dot<K>(from, stage.k, u);
        run_chain<K>(head, t0, staged, stage, from, tile, to, ahead, u);
      }
      if (is_last) ends.finish(head, tile);
    }
    with_type(p.o, [&](auto* o) {
      const Vec scale = broadcast(p.scale);
      for (int64_t t = 0; t < staged; ++t) {
        for (int64_t i = 0; i < count; ++i) {
          float* row = rows + (i * capacity + t) * kColumns;
          for (int c = 0; c < kColumns; c += kLanes) store(row + c, load(row + c) * scale);
          narrow_to(o + heads[i].row(p.o.stride, t0 + t) + heads[i].c0, 1, kColumns, row);
        }
      }
    });
  }
}

void recurrence_units(const RecurrenceJob& job, int64_t begin, int64_t end) {
  const HeadShape& heads = job.params->heads;
  const int64_t tiles = heads.value_heads * (heads.value_dim / kColumns);
  for (int64_t unit = begin; unit < end; ++unit) {
    const Sequence sequence(job, unit / job.parts);
    const int64_t part = unit % job.parts, first = tiles * part / job.parts, last = tiles * (part + 1) / job.parts;
    switch (heads.key_dim) {
      case 64: run_unit<64>(sequence, job.scratch, first, last); break;
      case 128: run_unit<128>(sequence, job.scratch, first, last); break;
      default: run_unit<256>(sequence, job.scratch, first, last); break;
    }
  }
}

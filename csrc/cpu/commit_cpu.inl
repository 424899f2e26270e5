// commit_cpu: S = α S + k δᵀ for the accepted tokens of an earlier verify, from its logs: no dot products, so the bits
// are those of the steps themselves.

// Columns [c0, c0 + kColumns) of sequence n and value head h, replayed on a tile that holds the state.
void replay_accepted(const CommitParams& p, const ReplayViews& logs, int64_t n, int64_t h, int64_t c0,
                     const Tile& tile) {
  const HeadShape& heads = p.heads;
  const int64_t key_head = heads.key_head_of(h);
  const int64_t accepted = accepted_count(p.window, n);
  for (int64_t i = 0; i < accepted; ++i) {
    const int64_t t = accepted_row(p.window, n, i);
    if (t < 0) return;
    const float* g = static_cast<const float*>(logs.g.data) + n * logs.g.stride[0] + t * logs.g.stride[1];
    const float* k = static_cast<const float*>(logs.k.data) + n * logs.k.stride[0] + t * logs.k.stride[1];
    const float* d = static_cast<const float*>(logs.d.data) + n * logs.d.stride[0] + t * logs.d.stride[1];
    tile_replay(tile, heads.key_dim, exact::exp(g[h * logs.g.stride[2]]), k + key_head * logs.k.stride[2],
                d + h * logs.d.stride[2] + c0);
  }
}

void commit_units(const CommitParams& p, float* scratch, int64_t begin, int64_t end) {
  const HeadShape& heads = p.heads;
  const int64_t tiles = heads.value_dim / kColumns;
  const Tile tile = tile_in_scratch(scratch, heads.key_dim);
  for (int64_t unit = begin; unit < end; ++unit) {
    const int64_t c0 = unit % tiles * kColumns, h = unit / tiles % heads.value_heads;
    const int64_t n = unit / tiles / heads.value_heads % p.window.sequences;
    const CommitLayer& layer = p.layers[unit / tiles / heads.value_heads / p.window.sequences];
    const int64_t slot = slot_of(p.window.state_indices, n, layer.state.slots);
    if (slot < 0 || accepted_count(p.window, n) == 0) continue;
    const StateTile state = state_tile(layer.state, slot, h, c0);
    state.load(tile, heads.key_dim);
    replay_accepted(p, layer.logs, n, h, c0, tile);
    state.save(tile, heads.key_dim);
  }
}

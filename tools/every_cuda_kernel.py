"""Launches every CUDA kernel once on small inputs, for compute-sanitizer: odd lengths, windows, a skipped slot."""

from __future__ import annotations

import torch

from strata_gdn import ops, registry


def recurrences() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for H, HV, K, V in ((2, 2, 64, 64), (1, 2, 128, 64), (1, 3, 128, 64), (1, 4, 128, 64), (1, 1, 256, 64)):
            T, N = 21, 2
            q, k = (torch.randn(N, T, H, K, device="cuda").to(dtype) for _ in range(2))
            v = torch.randn(N, T, HV, V, device="cuda").to(dtype)
            g, beta = -torch.rand(N, T, HV, device="cuda"), torch.rand(N, T, HV, device="cuda").to(dtype)
            state = torch.randn(3, HV, K, V, device="cuda")
            slots = torch.tensor([2, -1], device="cuda")
            for keyhead in (0, 1):
                with registry.overrides(GDN_KEYHEAD=keyhead):
                    ops.gated_delta_rule_(q, k, v, g, beta, state, slots, qk_l2norm=True)
            bounds = torch.tensor([1, 8, 8, 20], device="cuda")
            ops.gated_delta_rule(*(x[:1] for x in (q, k, v, g, beta)), cu_seqlens=bounds)


def others() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for C, W in ((64, 4), (70, 3), (70, 2), (66, 9)):
            x, weight = torch.randn(2, 70, C, device="cuda").to(dtype), torch.randn(C, W, device="cuda").to(dtype)
            state = torch.randn(2, C, W + 1, device="cuda").to(dtype)
            ops.causal_conv1d_(x, weight, None, state)
            parents = torch.arange(-1, 69, device="cuda").repeat(2, 1)
            ops.causal_conv1d_verify(x, weight, None, state, None, parents)
        for n in (64, 128, 256):
            a, b = (torch.randn(3, 5, 2, n, device="cuda").to(dtype) for _ in range(2))
            ops.qk_l2norm(a, b)
            ops.gated_rms_norm(a, b, torch.randn(n, device="cuda").to(dtype))
        gate = torch.randn(3, 7, 48, device="cuda").to(dtype)
        ops.gdn_gates(gate, gate, torch.randn(48, device="cuda"), torch.randn(48, device="cuda"))


if __name__ == "__main__":
    torch.manual_seed(0)
    recurrences()
    others()
    torch.cuda.synchronize()
    print(registry.served())

"""The resource gate, without a GPU: what the compiler says every CUDA kernel uses on every architecture.

The table is for one version of nvcc and is re-accepted when a kernel changes (docs/resources.md). The ceilings are code
in tools/gpu_resources/ceilings.py: they hold with every nvcc, and accepting the table lifts none of them.
"""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from expecttest import assert_expected_inline

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))

from gpu_resources import ceilings, compiler, kernels, occupancy, table  # noqa: E402
from gpu_resources.kernels import Kernel  # noqa: E402

TABLE_NVCC = "13.0"

# One worker compiles: it runs a compiler on every core.
pytestmark = pytest.mark.xdist_group("resources")


@pytest.fixture(scope="session")
def toolkit() -> compiler.Toolkit:
    found = compiler.cuda_toolkit.find_toolkit()
    if found is None:
        pytest.skip("no CUDA toolkit")
    return found


@pytest.fixture(scope="session")
def built(toolkit: compiler.Toolkit) -> list[Kernel]:
    """Every kernel on every architecture."""
    return compiler.resources(toolkit, compiler.architectures(toolkit))


def test_table(toolkit: compiler.Toolkit, built: list[Kernel]) -> None:
    if toolkit.version() != TABLE_NVCC:
        pytest.skip(f"the table is for nvcc {TABLE_NVCC}; this is {toolkit.version()}")
    assert_expected_inline(
        table.table(built),
        """\
kernel                                                        threads  shared   75   80   86   89   90   100  120
rec_lanes_kernel<128,1,16,bf16>                               256 x2   0+53248  125  125  128  128  128  128  128
rec_lanes_kernel<128,1,16,f16>                                256 x2   0+53248  125  125  128  128  128  128  128
rec_lanes_kernel<128,1,16,float>                              256 x2   0+53248  128  128  128  128  128  127  128
rec_lanes_kernel<128,1,8,bf16>                                192 x2   0+44032  127  128  127  127  128  143  144
rec_lanes_kernel<128,1,8,f16>                                 192 x2   0+44032  127  128  127  127  128  143  144
rec_lanes_kernel<128,1,8,float>                               192 x2   0+44032  128  128  136  136  140  145  148
rec_lanes_kernel<256,1,16,bf16>                               256 x1   0+44544  176  179  181  181  182  195  194
rec_lanes_kernel<256,1,16,f16>                                256 x1   0+44544  176  179  181  181  182  195  194
rec_lanes_kernel<256,1,16,float>                              256 x1   0+44544  176  179  181  181  182  195  194
rec_lanes_kernel<64,1,16,bf16>                                256 x2   0+36352  114  112  120  120  118  118  120
rec_lanes_kernel<64,1,16,f16>                                 256 x2   0+36352  114  112  120  120  118  118  120
rec_lanes_kernel<64,1,16,float>                               256 x2   0+36352  113  113  118  118  114  124  128
rec_lanes_kernel<128,2,16,bf16>                               256 x1   0+71680  165  168  166  166  167  158  161
rec_lanes_kernel<128,2,16,f16>                                256 x1   0+71680  165  168  166  166  167  158  161
rec_lanes_kernel<128,2,16,float>                              256 x1   0+71680  172  172  174  174  178  156  160
rec_lanes_kernel<128,3,16,bf16>                               256 x1   0+90112  194  192  198  198  194  185  187
rec_lanes_kernel<128,3,16,f16>                                256 x1   0+90112  194  192  198  198  194  185  187
rec_lanes_kernel<128,3,16,float>                              256 x1   0+90112  206  206  210  210  210  187  192
rec_lanes_kernel<128,4,16,bf16>                               256 x1   0+54784  234  234  236  236  234  210  214
rec_lanes_kernel<128,4,16,f16>                                256 x1   0+54784  234  234  236  236  234  210  214
rec_lanes_kernel<128,4,16,float>                              256 x1   0+54784  234  234  236  236  234  214  214
rec_lanes_kernel<256,2,16,bf16>                               256 x1   0+53760  254  254  254  254  254  234  239
rec_lanes_kernel<256,2,16,f16>                                256 x1   0+53760  254  254  254  254  254  234  239
rec_lanes_kernel<256,2,16,float>                              256 x1   0+53760  254  254  254  254  254  234  239
rec_lanes_kernel<64,2,16,bf16>                                256 x1   0+54784  128  128  128  128  125  128  131
rec_lanes_kernel<64,2,16,f16>                                 256 x1   0+54784  128  128  128  128  125  128  131
rec_lanes_kernel<64,2,16,float>                               256 x1   0+54784  126  126  128  128  136  138  140
rec_lanes_kernel<64,3,16,bf16>                                256 x1   0+73216  180  178  190  190  194  153  154
rec_lanes_kernel<64,3,16,f16>                                 256 x1   0+73216  180  178  190  190  194  153  154
rec_lanes_kernel<64,3,16,float>                               256 x1   0+73216  148  148  152  152  152  172  174
rec_lanes_kernel<64,4,16,bf16>                                256 x1   0+46080  134  128  131  131  139  143  139
rec_lanes_kernel<64,4,16,f16>                                 256 x1   0+46080  134  128  131  131  139  143  139
rec_lanes_kernel<64,4,16,float>                               256 x1   0+46080  134  128  131  131  137  143  139
step_kernel<StepTraits<128,(TileAccess)0,false>,(StepMode)0>  128 x2   12352+0  190  188  187  187  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,false>,(StepMode)0>  128 x3   12352+0  -    -    -    -    167  167  167
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)0>   128 x2   12352+0  195  199  201  201  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)0>   128 x3   12352+0  -    -    -    -    166  167  167
step_kernel<StepTraits<128,(TileAccess)1,false>,(StepMode)0>  128 x2   12352+0  184  186  179  179  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,false>,(StepMode)0>  128 x3   12352+0  -    -    -    -    165  167  168
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)0>   128 x2   12352+0  190  192  195  195  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)0>   128 x3   12352+0  -    -    -    -    168  167  167
step_kernel<StepTraits<256,(TileAccess)0,false>,(StepMode)0>  128 x2   19520+0  212  212  217  217  186  198  198
step_kernel<StepTraits<256,(TileAccess)0,true>,(StepMode)0>   128 x2   19520+0  212  212  222  222  200  208  208
step_kernel<StepTraits<256,(TileAccess)1,false>,(StepMode)0>  128 x2   19520+0  212  212  217  217  186  197  195
step_kernel<StepTraits<256,(TileAccess)1,true>,(StepMode)0>   128 x2   19520+0  213  213  216  216  193  204  206
step_kernel<StepTraits<64,(TileAccess)0,false>,(StepMode)0>   128 x2   10304+0  187  181  185  185  173  213  201
step_kernel<StepTraits<64,(TileAccess)0,true>,(StepMode)0>    128 x2   10304+0  182  182  186  186  182  203  206
step_kernel<StepTraits<64,(TileAccess)1,false>,(StepMode)0>   128 x2   10304+0  187  179  183  183  173  213  201
step_kernel<StepTraits<64,(TileAccess)1,true>,(StepMode)0>    128 x2   10304+0  182  186  186  186  174  203  200
step_kernel<StepTraits<128,(TileAccess)0,false>,(StepMode)1>  128 x2   12352+0  193  192  187  187  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,false>,(StepMode)1>  128 x3   12352+0  -    -    -    -    167  168  167
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)1>   128 x2   12352+0  199  209  203  203  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)1>   128 x3   12352+0  -    -    -    -    167  167  167
step_kernel<StepTraits<128,(TileAccess)1,false>,(StepMode)1>  128 x2   12352+0  186  188  181  181  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,false>,(StepMode)1>  128 x3   12352+0  -    -    -    -    167  167  167
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)1>   128 x2   12352+0  193  193  197  197  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)1>   128 x3   12352+0  -    -    -    -    166  168  166
step_kernel<StepTraits<256,(TileAccess)0,false>,(StepMode)1>  128 x2   19520+0  212  212  218  218  194  196  198
step_kernel<StepTraits<256,(TileAccess)0,true>,(StepMode)1>   128 x2   19520+0  213  213  224  224  204  208  210
step_kernel<StepTraits<256,(TileAccess)1,false>,(StepMode)1>  128 x2   19520+0  212  212  218  218  194  196  198
step_kernel<StepTraits<256,(TileAccess)1,true>,(StepMode)1>   128 x2   19520+0  213  213  219  219  195  209  207
step_kernel<StepTraits<64,(TileAccess)0,false>,(StepMode)1>   128 x2   10304+0  191  183  187  187  183  200  202
step_kernel<StepTraits<64,(TileAccess)0,true>,(StepMode)1>    128 x2   10304+0  189  187  188  188  180  198  200
step_kernel<StepTraits<64,(TileAccess)1,false>,(StepMode)1>   128 x2   10304+0  191  183  187  187  181  200  202
step_kernel<StepTraits<64,(TileAccess)1,true>,(StepMode)1>    128 x2   10304+0  189  193  187  187  177  199  199
verify_tree_kernel<128,(TileAccess)0,false>                   128 x2   6656+0   168  168  168  168  168  200  200
verify_tree_kernel<128,(TileAccess)0,true>                    128 x2   6656+0   208  208  180  180  178  198  198
verify_tree_kernel<128,(TileAccess)1,false>                   128 x2   4608+0   164  163  162  162  164  168  171
verify_tree_kernel<128,(TileAccess)1,true>                    128 x2   4608+0   167  167  168  168  164  168  172
verify_tree_kernel<256,(TileAccess)0,false>                   128 x2   4608+0   168  168  168  168  168  226  226
verify_tree_kernel<256,(TileAccess)0,true>                    128 x2   4608+0   168  168  167  167  167  226  226
verify_tree_kernel<256,(TileAccess)1,false>                   128 x2   4608+0   168  168  166  166  166  168  166
verify_tree_kernel<256,(TileAccess)1,true>                    128 x2   4608+0   167  167  164  164  164  166  166
verify_tree_kernel<64,(TileAccess)0,false>                    128 x2   4608+0   167  168  168  168  168  182  182
verify_tree_kernel<64,(TileAccess)0,true>                     128 x2   4608+0   168  168  168  168  168  184  184
verify_tree_kernel<64,(TileAccess)1,false>                    128 x2   4608+0   167  167  168  168  168  184  182
verify_tree_kernel<64,(TileAccess)1,true>                     128 x2   4608+0   168  167  168  168  168  184  182
step_kernel<StepTraits<128,(TileAccess)0,false>,(StepMode)2>  128 x2   12352+0  212  212  211  211  214  209  211
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)2>   128 x2   12352+0  230  232  218  218  218  208  210
step_kernel<StepTraits<128,(TileAccess)1,false>,(StepMode)2>  128 x2   12352+0  214  214  215  215  219  205  205
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)2>   128 x2   12352+0  215  215  214  214  222  204  205
step_kernel<StepTraits<256,(TileAccess)0,false>,(StepMode)2>  128 x2   19520+0  229  228  236  236  193  234  236
step_kernel<StepTraits<256,(TileAccess)0,true>,(StepMode)2>   128 x2   19520+0  228  228  238  238  210  238  240
step_kernel<StepTraits<256,(TileAccess)1,false>,(StepMode)2>  128 x2   19520+0  229  228  236  236  195  201  204
step_kernel<StepTraits<256,(TileAccess)1,true>,(StepMode)2>   128 x2   19520+0  228  229  235  235  208  209  207
step_kernel<StepTraits<64,(TileAccess)0,false>,(StepMode)2>   128 x2   10304+0  216  216  211  211  219  207  209
step_kernel<StepTraits<64,(TileAccess)0,true>,(StepMode)2>    128 x2   10304+0  218  218  207  207  210  204  206
step_kernel<StepTraits<64,(TileAccess)1,false>,(StepMode)2>   128 x2   10304+0  206  206  211  211  219  207  209
step_kernel<StepTraits<64,(TileAccess)1,true>,(StepMode)2>    128 x2   10304+0  212  212  210  210  218  206  208
commit_kernel<128,(TileAccess)0,false>                        128 x2   0+0      200  196  191  191  -    -    -
commit_kernel<128,(TileAccess)0,false>                        128 x3   0+0      -    -    -    -    162  168  168
commit_kernel<128,(TileAccess)0,true>                         128 x2   0+0      206  206  189  189  -    -    -
commit_kernel<128,(TileAccess)0,true>                         128 x3   0+0      -    -    -    -    168  167  167
commit_kernel<128,(TileAccess)1,false>                        128 x2   0+0      228  228  228  228  -    -    -
commit_kernel<128,(TileAccess)1,false>                        128 x3   0+0      -    -    -    -    168  168  168
commit_kernel<128,(TileAccess)1,true>                         128 x2   0+0      192  192  184  184  -    -    -
commit_kernel<128,(TileAccess)1,true>                         128 x3   0+0      -    -    -    -    168  167  168
commit_kernel<256,(TileAccess)0,false>                        128 x2   0+0      150  150  162  162  168  254  254
commit_kernel<256,(TileAccess)0,true>                         128 x2   0+0      168  168  166  166  174  224  226
commit_kernel<256,(TileAccess)1,false>                        128 x2   0+0      168  168  168  168  168  168  168
commit_kernel<256,(TileAccess)1,true>                         128 x2   0+0      164  162  162  162  168  164  168
commit_kernel<64,(TileAccess)0,false>                         128 x2   0+0      184  182  187  187  -    -    -
commit_kernel<64,(TileAccess)0,false>                         128 x3   0+0      -    -    -    -    168  168  168
commit_kernel<64,(TileAccess)0,true>                          128 x2   0+0      190  190  179  179  -    -    -
commit_kernel<64,(TileAccess)0,true>                          128 x3   0+0      -    -    -    -    166  168  168
commit_kernel<64,(TileAccess)1,false>                         128 x2   0+0      204  204  204  204  -    -    -
commit_kernel<64,(TileAccess)1,false>                         128 x3   0+0      -    -    -    -    167  168  168
commit_kernel<64,(TileAccess)1,true>                          128 x2   0+0      203  203  196  196  -    -    -
commit_kernel<64,(TileAccess)1,true>                          128 x3   0+0      -    -    -    -    167  167  168
conv_commit_kernel                                            128 x1   0+0      44   48   40   40   40   48   56
causal_conv1d_kernel<bf16,1,0>                                128 x5   0+0      52   48   48   48   40   69   62
causal_conv1d_kernel<bf16,1,2>                                128 x5   0+0      52   48   48   48   50   84   80
causal_conv1d_kernel<bf16,1,3>                                128 x5   0+0      52   48   48   48   55   76   72
causal_conv1d_kernel<bf16,1,4>                                128 x5   0+0      52   54   54   54   55   76   72
causal_conv1d_kernel<bf16,4,0>                                128 x5   0+0      56   48   48   48   48   86   86
causal_conv1d_kernel<bf16,4,2>                                128 x5   0+0      63   60   61   61   62   84   92
causal_conv1d_kernel<bf16,4,3>                                128 x5   0+0      70   68   66   66   72   90   80
causal_conv1d_kernel<bf16,4,4>                                128 x5   0+0      78   76   80   80   80   90   90
causal_conv1d_kernel<f16,1,0>                                 128 x5   0+0      52   48   48   48   40   69   62
causal_conv1d_kernel<f16,1,2>                                 128 x5   0+0      52   48   48   48   50   84   80
causal_conv1d_kernel<f16,1,3>                                 128 x5   0+0      54   48   48   48   55   76   72
causal_conv1d_kernel<f16,1,4>                                 128 x5   0+0      54   52   54   54   55   76   72
causal_conv1d_kernel<f16,4,0>                                 128 x5   0+0      56   48   48   48   48   86   86
causal_conv1d_kernel<f16,4,2>                                 128 x5   0+0      72   72   72   72   72   84   92
causal_conv1d_kernel<f16,4,3>                                 128 x5   0+0      80   80   80   80   80   90   80
causal_conv1d_kernel<f16,4,4>                                 128 x5   0+0      90   90   92   92   88   90   90
causal_conv1d_kernel<float,1,0>                               128 x4   0+0      52   48   48   48   40   69   62
causal_conv1d_kernel<float,1,2>                               128 x4   0+0      52   48   48   48   50   91   84
causal_conv1d_kernel<float,1,3>                               128 x4   0+0      54   48   48   48   55   96   96
causal_conv1d_kernel<float,1,4>                               128 x4   0+0      54   52   54   54   55   98   96
causal_conv1d_kernel<float,4,0>                               128 x4   0+0      54   56   56   56   53   114  114
causal_conv1d_kernel<float,4,2>                               128 x4   0+0      72   72   80   80   76   112  116
causal_conv1d_kernel<float,4,3>                               128 x4   0+0      84   84   90   90   94   111  112
causal_conv1d_kernel<float,4,4>                               128 x4   0+0      92   90   92   92   94   115  114
qk_l2norm_kernel<bf16,2,false>                                128 x1   0+0      58   50   50   50   50   46   46
qk_l2norm_kernel<bf16,2,true>                                 128 x1   0+0      58   50   50   50   50   42   44
qk_l2norm_kernel<bf16,4,false>                                128 x1   0+0      64   56   56   56   56   54   54
qk_l2norm_kernel<bf16,4,true>                                 128 x1   0+0      64   56   56   56   56   52   54
qk_l2norm_kernel<bf16,8,false>                                128 x1   0+0      58   50   50   50   50   54   54
qk_l2norm_kernel<bf16,8,true>                                 128 x1   0+0      58   50   50   50   50   52   54
qk_l2norm_kernel<f16,2,false>                                 128 x1   0+0      56   50   50   50   50   46   46
qk_l2norm_kernel<f16,2,true>                                  128 x1   0+0      56   50   50   50   50   42   44
qk_l2norm_kernel<f16,4,false>                                 128 x1   0+0      64   56   56   56   56   54   54
qk_l2norm_kernel<f16,4,true>                                  128 x1   0+0      64   56   56   56   56   54   54
qk_l2norm_kernel<f16,8,false>                                 128 x1   0+0      56   50   50   50   50   54   54
qk_l2norm_kernel<f16,8,true>                                  128 x1   0+0      56   50   50   50   50   54   54
qk_l2norm_kernel<float,2,false>                               128 x1   0+0      58   48   48   48   48   46   46
qk_l2norm_kernel<float,2,true>                                128 x1   0+0      58   48   48   48   48   46   48
qk_l2norm_kernel<float,4,false>                               128 x1   0+0      58   56   56   56   56   52   52
qk_l2norm_kernel<float,4,true>                                128 x1   0+0      54   56   56   56   56   54   56
qk_l2norm_kernel<float,8,false>                               128 x1   0+0      58   52   52   52   52   52   52
qk_l2norm_kernel<float,8,true>                                128 x1   0+0      58   50   50   50   50   54   56
gdn_gates_kernel<AnyRows,-1>                                  256 x1   0+0      42   40   40   40   40   40   40
gdn_gates_kernel<AnyRows,0>                                   256 x1   0+0      44   42   42   42   42   38   38
gdn_gates_kernel<AnyRows,1>                                   256 x1   0+0      44   42   42   42   42   38   38
gdn_gates_kernel<AnyRows,2>                                   256 x1   0+0      44   42   42   42   42   38   38
gdn_gates_kernel<JoinedRows,-1>                               256 x1   0+0      52   32   40   40   32   32   38
gdn_gates_kernel<JoinedRows,0>                                256 x1   0+0      40   32   38   38   32   32   40
gdn_gates_kernel<JoinedRows,1>                                256 x1   0+0      40   32   38   38   32   32   40
gdn_gates_kernel<JoinedRows,2>                                256 x1   0+0      40   32   38   38   32   32   40
gated_rms_norm_kernel<bf16,2,false>                           128 x3   0+0      66   66   66   66   72   78   78
gated_rms_norm_kernel<bf16,2,true>                            128 x3   0+0      62   62   62   62   64   72   72
gated_rms_norm_kernel<bf16,4,false>                           128 x3   0+0      102  102  102  102  106  116  116
gated_rms_norm_kernel<bf16,4,true>                            128 x3   0+0      87   86   88   88   94   100  99
gated_rms_norm_kernel<bf16,8,false>                           128 x3   0+0      108  98   98   98   110  114  114
gated_rms_norm_kernel<bf16,8,true>                            128 x3   0+0      95   85   84   84   92   104  103
gated_rms_norm_kernel<f16,2,false>                            128 x3   0+0      72   72   72   72   76   80   78
gated_rms_norm_kernel<f16,2,true>                             128 x3   0+0      64   64   64   64   72   70   72
gated_rms_norm_kernel<f16,4,false>                            128 x3   0+0      110  110  108  108  114  116  118
gated_rms_norm_kernel<f16,4,true>                             128 x3   0+0      94   94   94   94   102  104  105
gated_rms_norm_kernel<f16,8,false>                            128 x3   0+0      112  112  106  106  110  120  118
gated_rms_norm_kernel<f16,8,true>                             128 x3   0+0      96   92   92   92   100  108  107
gated_rms_norm_kernel<float,2,false>                          128 x3   0+0      74   74   74   74   80   80   84
gated_rms_norm_kernel<float,2,true>                           128 x3   0+0      76   76   76   76   80   82   84
gated_rms_norm_kernel<float,4,false>                          128 x3   0+0      118  118  116  116  122  122  124
gated_rms_norm_kernel<float,4,true>                           128 x3   0+0      118  118  118  118  122  122  122
gated_rms_norm_kernel<float,8,false>                          128 x3   0+0      119  116  114  114  118  122  126
gated_rms_norm_kernel<float,8,true>                           128 x3   0+0      128  128  128  128  134  122  122""",
    )


def test_no_kernel_breaks_a_ceiling(toolkit: compiler.Toolkit, built: list[Kernel]) -> None:
    launched = ceilings.launched(built)
    assert {kernel.source for kernel in launched} == {kernel.source for kernel in built}
    assert ceilings.broken(toolkit, launched) == []


# The registry


SHAPES = """
#include "core/rec_shapes.h"
#include <cstdlib>
#include <iostream>
using namespace gdn::policy;
int main(int count, char** archs) {
  for (int i = 1; i < count; ++i) {
    for (const RecShape& s : kRecShapes) {
      for (const int K : {64, 128, 256}) {
        if (K < s.least_key_dim || K > s.most_key_dim) continue;
        std::cout << archs[i] << " " << K << " " << s.heads << " " << s.columns << " " << s.resident << " "
                  << rec_shared_bytes(s.heads, s.columns, K) << " " << has_room(s, K, opt_in_bytes(std::atoi(archs[i])))
                  << "\\n";
      }
    }
  }
}
"""


def test_the_registry_counts_on_blocks_that_fit(toolkit: compiler.Toolkit, built: list[Kernel], tmp_path: Path) -> None:
    """On every architecture the recurrences' shapes are taken as resident where they are, and nowhere else."""
    source, program = tmp_path / "shapes.cpp", tmp_path / "shapes"
    source.write_text(SHAPES)
    compiler.nvcc(toolkit, ["-cudart=none", "-o", str(program), str(source)])
    listing = subprocess.run([program, *compiler.architectures(toolkit)], capture_output=True, text=True, check=True)
    launched = ceilings.launched(built)
    wrong, listed, compared = [], set(), set()
    for line in listing.stdout.splitlines():
        arch, *numbers = line.split()
        key_dim, heads, columns, resident, shared_bytes, counted_on = map(int, numbers)
        name = f"rec_lanes_kernel<{key_dim},{heads},{columns},"
        listed.add(name)
        instances = [kernel for kernel in launched if kernel.arch == arch and kernel.name.startswith(name)]
        for kernel, fit in zip(instances, occupancy.blocks(toolkit, instances), strict=True):
            compared.add(name)
            if (fit.resident >= resident) != bool(counted_on) or kernel.shared_bytes != shared_bytes:
                wrong.append(
                    f"{kernel.name} on sm_{arch}: {fit.resident} blocks of {kernel.shared_bytes} bytes are resident; "
                    f"the registry counts on {resident} of {shared_bytes}: {'yes' if counted_on else 'no'}"
                )
    assert compared == listed
    assert wrong == []


# Negative controls: what each ceiling and the reading of the report must notice.


PLANTED = """
struct PlainTraits {};
constexpr int live_values = 96;
constexpr int large_shared_bytes = 300 * 1024;

// More values alive across the barrier than 1024 threads have registers for.
__global__ void __launch_bounds__(1024) spilling_kernel(const float* x, float* y) {
  float kept[live_values];
#pragma unroll
  for (int i = 0; i < live_values; ++i) kept[i] = x[threadIdx.x + i * 1024];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < live_values; ++i) y[threadIdx.x + i * 1024] = kept[i];
}
__global__ void __launch_bounds__(64) stack_kernel(const int* x, int* y) {
  int table[32];
  for (int i = 0; i < 32; ++i) table[x[i] % 32] = i;
  y[threadIdx.x] = table[x[threadIdx.x] % 32];
}
__global__ void __launch_bounds__(64, 3) large_kernel(float* y) {
  extern __shared__ float s_memory[];
  s_memory[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s_memory[63 - threadIdx.x];
}
__global__ void unbounded_kernel(float* y) { y[threadIdx.x] = 1.0f; }
template <class Traits, int count>
__global__ void __launch_bounds__(128) plain_kernel(float* y) {
  __shared__ float s_memory[count];
  s_memory[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = s_memory[count - 1 - threadIdx.x];
}
template __global__ void plain_kernel<PlainTraits, 128>(float*);
"""


@pytest.fixture(scope="session")
def planted(toolkit: compiler.Toolkit, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Kernel]:
    source = tmp_path_factory.mktemp("planted") / "planted.cu"
    source.write_text(PLANTED)
    return {
        kernel.name.partition("_kernel")[0]: kernel
        for kernel in compiler.compile_source(toolkit, str(source), compiler.architectures(toolkit)[0])
    }


def test_the_report_is_read(planted: dict[str, Kernel]) -> None:
    plain, large = planted["plain"], planted["large"]
    assert plain.name == "plain_kernel<PlainTraits,128>"
    assert (plain.threads, plain.promised_blocks) == (128, 1)
    assert (plain.static_bytes, plain.dynamic_bytes) == (4 * 128, 0)
    assert (plain.spill_bytes, plain.stack_bytes) == (0, 0)
    assert 0 < plain.registers < 32
    assert (large.threads, large.promised_blocks) == (64, 3)
    assert (large.static_bytes, large.dynamic_bytes) == (0, 300 * 1024)
    assert planted["spilling"].registers == 64
    assert planted["unbounded"].threads is None


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("spilling", r"spills \d+ bytes; 0 are allowed"),
        ("spilling", r"has \d+ bytes of local memory a thread; 0 are allowed"),
        ("stack", r"has \d+ bytes of local memory a thread; 0 are allowed"),
        ("large", r"has 307200 bytes of shared memory a block; \d+ are there"),
        ("unbounded", r"has no launch bounds: .*"),
    ],
)
def test_a_planted_kernel_breaks_its_ceiling(
    toolkit: compiler.Toolkit, planted: dict[str, Kernel], name: str, what: str
) -> None:
    found = ceilings.broken(toolkit, [planted[name]])
    assert any(re.fullmatch(rf"{name}_kernel on sm_\d+: {what}", sentence) for sentence in found), found
    assert ceilings.broken(toolkit, [planted["plain"]]) == []


def test_a_ceiling_is_where_it_says(toolkit: compiler.Toolkit, planted: dict[str, Kernel]) -> None:
    for arch in compiler.architectures(toolkit):
        shared_bytes = occupancy.MULTIPROCESSORS[arch].block_shared_bytes
        kernel = replace(planted["plain"], arch=arch, static_bytes=0)
        for within, beyond in [
            ({"dynamic_bytes": shared_bytes}, {"dynamic_bytes": shared_bytes, "static_bytes": 1}),
            ({"threads": 1024}, {"threads": 1025}),
            ({"threads": 1024, "registers": 64}, {"threads": 1024, "registers": 65}),
            ({"promised_blocks": 2, "registers": 255}, {"promised_blocks": 3, "registers": 255}),
        ]:
            assert ceilings.broken(toolkit, [replace(kernel, **within)]) == []
            assert len(ceilings.broken(toolkit, [replace(kernel, **beyond)])) == 1


def test_dynamic_shared_memory_needs_a_constant(toolkit: compiler.Toolkit, tmp_path: Path) -> None:
    source = tmp_path / "planted.cu"
    source.write_text(PLANTED.replace("large_shared_bytes", "other_bytes"))
    with pytest.raises(RuntimeError) as error:
        compiler.compile_source(toolkit, str(source), compiler.architectures(toolkit)[0])
    assert str(error.value) == (
        f"{source}: large_kernel uses dynamic shared memory; its launcher must take the size from a constant "
        "large_shared_bytes"
    )


# The tool


def test_limits_are_known_for_every_architecture() -> None:
    assert set(occupancy.MULTIPROCESSORS) == {arch for arch in compiler.SOURCES["cuda_archs"] if "+" not in arch}


def test_names() -> None:
    signatures = kernels.demangled(
        ["_ZN3gdn3gpu16rec_lanes_kernelINS0_9RecTraitsILi128ELi3ELi16ENS_4bf16EEEEEvb", "_Z1kv"]
    )
    assert kernels.short_names(signatures) == ["rec_lanes_kernel<128,3,16,bf16>", "k"]
    ambiguous = ["void x_kernel<ATraits<1> >(int)", "void x_kernel<n::BTraits<1> >(int)"]
    assert kernels.short_names(ambiguous) == ["x_kernel<ATraits<1>>", "x_kernel<BTraits<1>>"]
    assert kernels.template_name(signatures[0]) == (
        "gdn::gpu::rec_lanes_kernel",
        "<gdn::gpu::RecTraits<128, 3, 16, gdn::bf16> >",
    )


def test_a_variant_has_a_line_of_its_own(planted: dict[str, Kernel]) -> None:
    plain = replace(planted["plain"], source="a.cu", name="a_kernel", arch="75", registers=20)
    lines = table.table(
        [
            plain,
            replace(plain, arch="80", registers=21, spill_bytes=12, stack_bytes=8),
            replace(plain, arch="86", registers=22, threads=96),
            replace(plain, arch="80", source="b.cu", name="b_kernel", promised_blocks=2, threads=None),
        ]
    )
    assert_expected_inline(
        lines,
        """\
kernel    threads  shared  75  80       86
a_kernel  128 x1   512+0   20  21/12/8  -
a_kernel  96 x1    512+0   -   -        22
b_kernel  any      512+0   -   20       -""",
    )


def test_a_result_is_kept_until_its_key_changes(
    toolkit: compiler.Toolkit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compiler, "BUILD", tmp_path)
    monkeypatch.setitem(compiler.SOURCES, "cuda", ["cuda/gdn_gates.cu"])
    archs = compiler.architectures(toolkit)[:1]
    first = compiler.resources(toolkit, archs)
    assert {kernel.name.partition("<")[0] for kernel in first} == {"gdn_gates_kernel"}
    monkeypatch.setattr(compiler, "compile_source", lambda *arguments: [])
    assert compiler.resources(toolkit, archs) == first
    monkeypatch.setattr(compiler, "key", lambda *arguments: "another")
    assert compiler.resources(toolkit, archs) == []


def test_the_key_is_every_file_and_the_compiler(toolkit: compiler.Toolkit, monkeypatch: pytest.MonkeyPatch) -> None:
    key = compiler.key(toolkit, "cuda/rec_columns.cu")
    assert compiler.key(toolkit, "cuda/rec_columns.cu") == key
    read = Path.read_bytes
    for name in (
        "csrc/cuda/rec_columns.cu",
        "csrc/cuda/rec_lanes.cuh",
        "csrc/core/params.h",
        "tools/gpu_resources/kernels.py",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", lambda path, name=name: read(path) + b" " * (path == ROOT / name))
            assert compiler.key(toolkit, "cuda/rec_columns.cu") != key
    with monkeypatch.context() as patch:
        patch.setattr(compiler.cuda_toolkit, "MACHINE_CODE_FLAGS", ["-O3"])
        assert compiler.key(toolkit, "cuda/rec_columns.cu") != key

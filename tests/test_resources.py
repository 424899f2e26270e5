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
kernel                                                        threads  shared      75   80   86   89   90   100  120
rec_lanes_kernel<128,1,16,bf16>                               256 x2   0+53248     113  118  117  117  116  126  126
rec_lanes_kernel<128,1,16,f16>                                256 x2   0+53248     113  118  117  117  116  126  126
rec_lanes_kernel<128,1,16,float>                              256 x2   0+53248     122  122  122  122  126  128  128
rec_lanes_kernel<128,1,8,bf16>                                192 x2   0+44032     111  114  113  113  121  128  134
rec_lanes_kernel<128,1,8,f16>                                 192 x2   0+44032     111  114  113  113  121  128  134
rec_lanes_kernel<128,1,8,float>                               192 x2   0+44032     124  124  124  124  130  146  148
rec_lanes_kernel<256,1,16,bf16>                               256 x1   0+44544     165  158  148  148  169  173  175
rec_lanes_kernel<256,1,16,f16>                                256 x1   0+44544     165  158  148  148  169  173  175
rec_lanes_kernel<256,1,16,float>                              256 x1   0+44544     165  158  148  148  169  173  175
rec_lanes_kernel<64,1,16,bf16>                                256 x2   0+36352     102  102  102  102  108  108  111
rec_lanes_kernel<64,1,16,f16>                                 256 x2   0+36352     102  102  102  102  108  108  111
rec_lanes_kernel<64,1,16,float>                               256 x2   0+36352     106  106  112  112  116  118  128
rec_lanes_kernel<128,2,16,bf16>                               256 x1   0+71680     153  152  152  152  159  142  145
rec_lanes_kernel<128,2,16,f16>                                256 x1   0+71680     153  152  152  152  159  142  145
rec_lanes_kernel<128,2,16,float>                              256 x1   0+71680     166  166  166  166  174  154  162
rec_lanes_kernel<128,3,16,bf16>                               256 x1   0+90112     188  204  208  208  206  168  166
rec_lanes_kernel<128,3,16,f16>                                256 x1   0+90112     188  204  208  208  206  168  166
rec_lanes_kernel<128,3,16,float>                              256 x1   0+90112     200  204  208  208  206  180  192
rec_lanes_kernel<128,4,16,bf16>                               256 x1   0+54784     232  250  236  236  236  206  207
rec_lanes_kernel<128,4,16,f16>                                256 x1   0+54784     232  250  236  236  236  206  207
rec_lanes_kernel<128,4,16,float>                              256 x1   0+54784     232  250  236  236  236  206  207
rec_lanes_kernel<256,2,16,bf16>                               256 x1   0+53760     254  254  254  254  254  212  212
rec_lanes_kernel<256,2,16,f16>                                256 x1   0+53760     254  254  254  254  254  212  212
rec_lanes_kernel<256,2,16,float>                              256 x1   0+53760     254  254  254  254  254  212  212
rec_lanes_kernel<64,2,16,bf16>                                256 x1   0+54784     120  120  122  122  128  120  122
rec_lanes_kernel<64,2,16,f16>                                 256 x1   0+54784     120  120  122  122  128  120  122
rec_lanes_kernel<64,2,16,float>                               256 x1   0+54784     126  126  126  126  124  140  144
rec_lanes_kernel<64,3,16,bf16>                                256 x1   0+73216     167  167  167  167  184  146  150
rec_lanes_kernel<64,3,16,f16>                                 256 x1   0+73216     167  167  167  167  184  146  150
rec_lanes_kernel<64,3,16,float>                               256 x1   0+73216     144  144  142  142  148  160  168
rec_lanes_kernel<64,4,16,bf16>                                256 x1   0+46080     124  128  124  124  128  127  128
rec_lanes_kernel<64,4,16,f16>                                 256 x1   0+46080     124  128  124  124  128  127  128
rec_lanes_kernel<64,4,16,float>                               256 x1   0+46080     122  128  124  124  127  127  128
step_kernel<StepTraits<128,(TileAccess)0,false>,(StepMode)0>  256 x1   12352+0     192  194  185  185  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,false>,(StepMode)0>  384 x1   12352+0     -    -    -    -    157  159  159
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)0>   256 x1   12352+0     186  190  185  185  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)0>   512 x1   12352+0     -    -    -    -    128  128  128
step_kernel<StepTraits<128,(TileAccess)1,false>,(StepMode)0>  256 x1   12352+0     192  192  183  183  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,false>,(StepMode)0>  384 x1   12352+0     -    -    -    -    156  159  158
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)0>   256 x1   12352+0     192  192  185  185  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)0>   512 x1   12352+0     -    -    -    -    128  128  128
step_kernel<StepTraits<256,(TileAccess)0,false>,(StepMode)0>  256 x1   20544+0     188  188  185  185  189  176  178
step_kernel<StepTraits<256,(TileAccess)0,true>,(StepMode)0>   256 x1   20544+0     219  202  198  198  204  190  194
step_kernel<StepTraits<256,(TileAccess)1,false>,(StepMode)0>  256 x1   20544+0     188  188  185  185  189  176  177
step_kernel<StepTraits<256,(TileAccess)1,true>,(StepMode)0>   256 x1   20544+0     193  194  188  188  191  178  180
step_kernel<StepTraits<64,(TileAccess)0,false>,(StepMode)0>   256 x1   8256+0      188  188  183  183  189  209  207
step_kernel<StepTraits<64,(TileAccess)0,true>,(StepMode)0>    256 x1   8256+0      185  180  180  180  182  213  207
step_kernel<StepTraits<64,(TileAccess)1,false>,(StepMode)0>   256 x1   8256+0      188  188  183  183  189  209  207
step_kernel<StepTraits<64,(TileAccess)1,true>,(StepMode)0>    256 x1   8256+0      193  190  184  184  188  212  208
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)3>   256 x1   12352+4096  186  186  193  193  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)3>   384 x1   12352+4096  -    -    -    -    -    164  158
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)3>   512 x1   12352+4096  -    -    -    -    127  -    -
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)3>   256 x1   12352+4096  190  190  186  186  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)3>   384 x1   12352+4096  -    -    -    -    -    162  160
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)3>   512 x1   12352+4096  -    -    -    -    128  -    -
step_kernel<StepTraits<256,(TileAccess)0,true>,(StepMode)3>   256 x1   20544+2048  208  208  208  208  204  190  192
step_kernel<StepTraits<256,(TileAccess)1,true>,(StepMode)3>   256 x1   20544+2048  200  196  195  195  194  173  174
step_kernel<StepTraits<64,(TileAccess)0,true>,(StepMode)3>    256 x1   8256+8192   184  186  184  184  185  217  211
step_kernel<StepTraits<64,(TileAccess)1,true>,(StepMode)3>    256 x1   8256+8192   188  188  186  186  190  214  210
step_kernel<StepTraits<128,(TileAccess)0,false>,(StepMode)1>  256 x1   12352+0     202  202  193  193  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,false>,(StepMode)1>  384 x1   12352+0     -    -    -    -    165  158  157
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)1>   256 x1   12352+0     192  217  197  197  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)1>   512 x1   12352+0     -    -    -    -    128  127  125
step_kernel<StepTraits<128,(TileAccess)1,false>,(StepMode)1>  256 x1   12352+0     196  196  188  188  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,false>,(StepMode)1>  384 x1   12352+0     -    -    -    -    161  159  159
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)1>   256 x1   12352+0     196  196  191  191  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)1>   512 x1   12352+0     -    -    -    -    128  128  127
step_kernel<StepTraits<256,(TileAccess)0,false>,(StepMode)1>  256 x1   20544+0     203  211  192  192  191  172  188
step_kernel<StepTraits<256,(TileAccess)0,true>,(StepMode)1>   256 x1   20544+0     206  227  208  208  206  190  204
step_kernel<StepTraits<256,(TileAccess)1,false>,(StepMode)1>  256 x1   20544+0     203  211  192  192  191  172  188
step_kernel<StepTraits<256,(TileAccess)1,true>,(StepMode)1>   256 x1   20544+0     195  202  197  197  193  174  188
step_kernel<StepTraits<64,(TileAccess)0,false>,(StepMode)1>   256 x1   8256+0      194  198  189  189  189  215  210
step_kernel<StepTraits<64,(TileAccess)0,true>,(StepMode)1>    256 x1   8256+0      186  186  188  188  186  221  212
step_kernel<StepTraits<64,(TileAccess)1,false>,(StepMode)1>   256 x1   8256+0      196  198  189  189  189  213  209
step_kernel<StepTraits<64,(TileAccess)1,true>,(StepMode)1>    256 x1   8256+0      190  192  190  190  190  214  210
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)4>   256 x1   12352+4096  194  194  199  199  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)4>   512 x1   12352+4096  -    -    -    -    128  128  128
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)4>   256 x1   12352+4096  196  197  190  190  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)4>   512 x1   12352+4096  -    -    -    -    127  128  128
step_kernel<StepTraits<256,(TileAccess)0,true>,(StepMode)4>   256 x1   20544+2048  216  216  206  206  206  192  194
step_kernel<StepTraits<256,(TileAccess)1,true>,(StepMode)4>   256 x1   20544+2048  202  202  194  194  197  181  182
step_kernel<StepTraits<64,(TileAccess)0,true>,(StepMode)4>    256 x1   8256+8192   190  190  189  189  188  218  225
step_kernel<StepTraits<64,(TileAccess)1,true>,(StepMode)4>    256 x1   8256+8192   192  192  190  190  192  220  226
verify_tree_kernel<128,(TileAccess)0,false>                   256 x1   8704+0      168  168  168  168  166  190  190
verify_tree_kernel<128,(TileAccess)0,true>                    256 x1   8704+0      188  190  172  172  167  192  192
verify_tree_kernel<128,(TileAccess)1,false>                   256 x1   4608+0      161  161  162  162  158  168  166
verify_tree_kernel<128,(TileAccess)1,true>                    256 x1   4608+0      168  167  166  166  162  182  183
verify_tree_kernel<256,(TileAccess)0,false>                   256 x1   4608+0      168  168  166  166  164  220  219
verify_tree_kernel<256,(TileAccess)0,true>                    256 x1   4608+0      168  168  164  164  162  222  222
verify_tree_kernel<256,(TileAccess)1,false>                   256 x1   4608+0      167  168  162  162  164  162  162
verify_tree_kernel<256,(TileAccess)1,true>                    256 x1   4608+0      167  167  163  163  162  174  176
verify_tree_kernel<64,(TileAccess)0,false>                    256 x1   4608+0      167  167  168  168  168  174  174
verify_tree_kernel<64,(TileAccess)0,true>                     256 x1   4608+0      168  168  166  166  164  178  174
verify_tree_kernel<64,(TileAccess)1,false>                    256 x1   4608+0      167  167  166  166  164  176  178
verify_tree_kernel<64,(TileAccess)1,true>                     256 x1   4608+0      168  168  168  168  166  192  192
step_kernel<StepTraits<128,(TileAccess)0,false>,(StepMode)2>  256 x1   12352+0     224  224  218  218  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,false>,(StepMode)2>  384 x1   12352+0     -    -    -    -    168  168  167
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)2>   256 x1   12352+0     226  226  220  220  -    -    -
step_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)2>   384 x1   12352+0     -    -    -    -    168  166  166
step_kernel<StepTraits<128,(TileAccess)1,false>,(StepMode)2>  256 x1   12352+0     222  222  214  214  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,false>,(StepMode)2>  384 x1   12352+0     -    -    -    -    168  168  168
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)2>   256 x1   12352+0     221  221  220  220  -    -    -
step_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)2>   384 x1   12352+0     -    -    -    -    168  167  167
step_kernel<StepTraits<256,(TileAccess)0,false>,(StepMode)2>  256 x1   20544+0     215  212  200  200  191  187  208
step_kernel<StepTraits<256,(TileAccess)0,true>,(StepMode)2>   256 x1   20544+0     229  224  206  206  206  192  208
step_kernel<StepTraits<256,(TileAccess)1,false>,(StepMode)2>  256 x1   20544+0     215  212  200  200  191  182  206
step_kernel<StepTraits<256,(TileAccess)1,true>,(StepMode)2>   256 x1   20544+0     220  224  196  196  204  183  202
step_kernel<StepTraits<64,(TileAccess)0,false>,(StepMode)2>   256 x1   8256+0      204  204  211  211  213  235  237
step_kernel<StepTraits<64,(TileAccess)0,true>,(StepMode)2>    256 x1   8256+0      207  207  205  205  209  227  229
step_kernel<StepTraits<64,(TileAccess)1,false>,(StepMode)2>   256 x1   8256+0      204  204  211  211  213  233  229
step_kernel<StepTraits<64,(TileAccess)1,true>,(StepMode)2>    256 x1   8256+0      217  217  210  210  212  226  228
commit_kernel<128,(TileAccess)0,false>                        128 x2   0+0         200  196  191  191  -    -    -
commit_kernel<128,(TileAccess)0,false>                        128 x3   0+0         -    -    -    -    -    168  168
commit_kernel<128,(TileAccess)0,false>                        128 x4   0+0         -    -    -    -    128  -    -
commit_kernel<128,(TileAccess)0,true>                         128 x2   0+0         204  185  186  186  -    -    -
commit_kernel<128,(TileAccess)0,true>                         128 x3   0+0         -    -    -    -    -    167  167
commit_kernel<128,(TileAccess)0,true>                         128 x4   0+0         -    -    -    -    128  -    -
commit_kernel<128,(TileAccess)1,false>                        128 x2   0+0         228  228  228  228  -    -    -
commit_kernel<128,(TileAccess)1,false>                        128 x3   0+0         -    -    -    -    -    168  168
commit_kernel<128,(TileAccess)1,false>                        128 x4   0+0         -    -    -    -    128  -    -
commit_kernel<128,(TileAccess)1,true>                         128 x2   0+0         192  192  184  184  -    -    -
commit_kernel<128,(TileAccess)1,true>                         128 x3   0+0         -    -    -    -    -    168  168
commit_kernel<128,(TileAccess)1,true>                         128 x4   0+0         -    -    -    -    128  -    -
commit_kernel<256,(TileAccess)0,false>                        128 x2   0+0         150  150  162  162  168  254  254
commit_kernel<256,(TileAccess)0,true>                         128 x2   0+0         202  202  174  174  180  224  226
commit_kernel<256,(TileAccess)1,false>                        128 x2   0+0         168  168  168  168  168  168  168
commit_kernel<256,(TileAccess)1,true>                         128 x2   0+0         164  162  162  162  168  178  182
commit_kernel<64,(TileAccess)0,false>                         128 x2   0+0         184  182  187  187  -    -    -
commit_kernel<64,(TileAccess)0,false>                         128 x3   0+0         -    -    -    -    168  168  168
commit_kernel<64,(TileAccess)0,true>                          128 x2   0+0         190  190  179  179  -    -    -
commit_kernel<64,(TileAccess)0,true>                          128 x3   0+0         -    -    -    -    168  168  168
commit_kernel<64,(TileAccess)1,false>                         128 x2   0+0         204  204  204  204  -    -    -
commit_kernel<64,(TileAccess)1,false>                         128 x3   0+0         -    -    -    -    167  168  168
commit_kernel<64,(TileAccess)1,true>                          128 x2   0+0         202  202  196  196  -    -    -
commit_kernel<64,(TileAccess)1,true>                          128 x3   0+0         -    -    -    -    168  168  168
conv_commit_kernel                                            128 x1   0+0         44   48   40   40   40   48   56
causal_conv1d_kernel<bf16,1,0>                                128 x5   0+0         52   48   48   48   40   69   62
causal_conv1d_kernel<bf16,1,2>                                128 x5   0+0         52   48   48   48   50   84   80
causal_conv1d_kernel<bf16,1,3>                                128 x5   0+0         52   48   48   48   55   76   72
causal_conv1d_kernel<bf16,1,4>                                128 x5   0+0         52   54   54   54   55   76   72
causal_conv1d_kernel<bf16,4,0>                                128 x5   0+0         56   48   48   48   48   86   86
causal_conv1d_kernel<bf16,4,2>                                128 x5   0+0         63   60   61   61   62   84   92
causal_conv1d_kernel<bf16,4,3>                                128 x5   0+0         70   68   66   66   72   90   80
causal_conv1d_kernel<bf16,4,4>                                128 x5   0+0         78   76   80   80   80   90   90
causal_conv1d_kernel<f16,1,0>                                 128 x5   0+0         52   48   48   48   40   69   62
causal_conv1d_kernel<f16,1,2>                                 128 x5   0+0         52   48   48   48   50   84   80
causal_conv1d_kernel<f16,1,3>                                 128 x5   0+0         54   48   48   48   55   76   72
causal_conv1d_kernel<f16,1,4>                                 128 x5   0+0         54   52   54   54   55   76   72
causal_conv1d_kernel<f16,4,0>                                 128 x5   0+0         56   48   48   48   48   86   86
causal_conv1d_kernel<f16,4,2>                                 128 x5   0+0         72   72   72   72   72   84   92
causal_conv1d_kernel<f16,4,3>                                 128 x5   0+0         80   80   80   80   80   90   80
causal_conv1d_kernel<f16,4,4>                                 128 x5   0+0         90   90   92   92   88   90   90
causal_conv1d_kernel<float,1,0>                               128 x4   0+0         52   48   48   48   40   69   62
causal_conv1d_kernel<float,1,2>                               128 x4   0+0         52   48   48   48   50   91   84
causal_conv1d_kernel<float,1,3>                               128 x4   0+0         54   48   48   48   55   96   96
causal_conv1d_kernel<float,1,4>                               128 x4   0+0         54   52   54   54   55   98   96
causal_conv1d_kernel<float,4,0>                               128 x4   0+0         54   56   56   56   53   114  114
causal_conv1d_kernel<float,4,2>                               128 x4   0+0         72   72   80   80   76   112  116
causal_conv1d_kernel<float,4,3>                               128 x4   0+0         84   84   90   90   94   111  112
causal_conv1d_kernel<float,4,4>                               128 x4   0+0         92   90   92   92   94   115  114
conv_gates_kernel<AnyConv>                                    256 x1   0+0         45   45   45   45   44   91   81
conv_gates_kernel<PackedConv<bf16,(Follows)0>>                256 x1   0+0         26   30   28   28   28   30   26
conv_gates_kernel<PackedConv<bf16,(Follows)1>>                256 x1   0+0         36   32   34   34   32   32   36
conv_gates_kernel<PackedConv<bf16,(Follows)2>>                256 x1   0+0         34   32   32   32   32   34   35
conv_gates_kernel<PackedConv<f16,(Follows)0>>                 256 x1   0+0         26   30   28   28   27   30   26
conv_gates_kernel<PackedConv<f16,(Follows)1>>                 256 x1   0+0         34   32   34   34   32   32   36
conv_gates_kernel<PackedConv<f16,(Follows)2>>                 256 x1   0+0         34   32   32   32   32   34   35
layer_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)6>  256 x1   12352+4096  167  167  155  155  159  160  160
layer_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)6>  256 x1   12352+4096  153  153  152  152  157  156  156
layer_kernel<StepTraits<256,(TileAccess)0,true>,(StepMode)6>  256 x1   20544+2048  167  167  160  160  164  168  164
layer_kernel<StepTraits<256,(TileAccess)1,true>,(StepMode)6>  256 x1   20544+2048  153  151  152  152  155  160  156
layer_kernel<StepTraits<64,(TileAccess)0,true>,(StepMode)6>   256 x1   8256+8192   159  156  154  154  160  158  158
layer_kernel<StepTraits<64,(TileAccess)1,true>,(StepMode)6>   256 x1   8256+8192   152  156  156  156  159  157  158
qk_l2norm_kernel<bf16,2,false>                                128 x1   0+0         58   50   50   50   50   46   46
qk_l2norm_kernel<bf16,2,true>                                 128 x1   0+0         58   50   50   50   50   42   44
qk_l2norm_kernel<bf16,4,false>                                128 x1   0+0         64   56   56   56   56   54   54
qk_l2norm_kernel<bf16,4,true>                                 128 x1   0+0         64   56   56   56   56   52   54
qk_l2norm_kernel<bf16,8,false>                                128 x1   0+0         58   50   50   50   50   54   54
qk_l2norm_kernel<bf16,8,true>                                 128 x1   0+0         58   50   50   50   50   52   54
qk_l2norm_kernel<f16,2,false>                                 128 x1   0+0         56   50   50   50   50   46   46
qk_l2norm_kernel<f16,2,true>                                  128 x1   0+0         56   50   50   50   50   42   44
qk_l2norm_kernel<f16,4,false>                                 128 x1   0+0         64   56   56   56   56   54   54
qk_l2norm_kernel<f16,4,true>                                  128 x1   0+0         64   56   56   56   56   54   54
qk_l2norm_kernel<f16,8,false>                                 128 x1   0+0         56   50   50   50   50   54   54
qk_l2norm_kernel<f16,8,true>                                  128 x1   0+0         56   50   50   50   50   54   54
qk_l2norm_kernel<float,2,false>                               128 x1   0+0         58   48   48   48   48   46   46
qk_l2norm_kernel<float,2,true>                                128 x1   0+0         58   48   48   48   48   46   48
qk_l2norm_kernel<float,4,false>                               128 x1   0+0         58   56   56   56   56   52   52
qk_l2norm_kernel<float,4,true>                                128 x1   0+0         54   56   56   56   56   54   56
qk_l2norm_kernel<float,8,false>                               128 x1   0+0         58   52   52   52   52   52   52
qk_l2norm_kernel<float,8,true>                                128 x1   0+0         58   50   50   50   50   54   56
gdn_gates_kernel<AnyRows,-1>                                  256 x1   0+0         42   40   40   40   40   40   40
gdn_gates_kernel<AnyRows,0>                                   256 x1   0+0         44   42   42   42   42   38   38
gdn_gates_kernel<AnyRows,1>                                   256 x1   0+0         44   42   42   42   42   38   38
gdn_gates_kernel<AnyRows,2>                                   256 x1   0+0         44   42   42   42   42   38   38
gdn_gates_kernel<JoinedRows,-1>                               256 x1   0+0         52   32   40   40   32   32   38
gdn_gates_kernel<JoinedRows,0>                                256 x1   0+0         40   32   38   38   32   32   40
gdn_gates_kernel<JoinedRows,1>                                256 x1   0+0         40   32   38   38   32   32   40
gdn_gates_kernel<JoinedRows,2>                                256 x1   0+0         40   32   38   38   32   32   40
gated_rms_norm_kernel<bf16,2,false>                           128 x3   0+0         66   66   66   66   72   78   78
gated_rms_norm_kernel<bf16,2,true>                            128 x3   0+0         62   62   62   62   64   72   72
gated_rms_norm_kernel<bf16,4,false>                           128 x3   0+0         102  102  102  102  106  116  116
gated_rms_norm_kernel<bf16,4,true>                            128 x3   0+0         87   86   88   88   94   100  99
gated_rms_norm_kernel<bf16,8,false>                           128 x3   0+0         108  98   98   98   110  114  114
gated_rms_norm_kernel<bf16,8,true>                            128 x3   0+0         95   85   84   84   92   104  103
gated_rms_norm_kernel<f16,2,false>                            128 x3   0+0         72   72   72   72   76   80   78
gated_rms_norm_kernel<f16,2,true>                             128 x3   0+0         64   64   64   64   72   70   72
gated_rms_norm_kernel<f16,4,false>                            128 x3   0+0         110  110  108  108  114  116  118
gated_rms_norm_kernel<f16,4,true>                             128 x3   0+0         94   94   94   94   102  104  105
gated_rms_norm_kernel<f16,8,false>                            128 x3   0+0         112  112  106  106  110  120  118
gated_rms_norm_kernel<f16,8,true>                             128 x3   0+0         96   92   92   92   100  108  107
gated_rms_norm_kernel<float,2,false>                          128 x3   0+0         74   74   74   74   80   80   84
gated_rms_norm_kernel<float,2,true>                           128 x3   0+0         76   76   76   76   80   82   84
gated_rms_norm_kernel<float,4,false>                          128 x3   0+0         118  118  116  116  122  122  124
gated_rms_norm_kernel<float,4,true>                           128 x3   0+0         118  118  118  118  122  122  122
gated_rms_norm_kernel<float,8,false>                          128 x3   0+0         119  116  114  114  118  122  126
gated_rms_norm_kernel<float,8,true>                           128 x3   0+0         128  128  128  128  134  122  122
chunk_prep_kernel<128>                                        256 x2   0+62080     120  122  128  128  128  128  128
chunk_prep_kernel<256>                                        256 x2   0+94848     118  121  121  121  121  128  128
chunk_prep_kernel<64>                                         256 x2   0+45696     120  122  128  128  128  128  128
chunk_scan_kernel<128,1>                                      128 x1   0+67680     165  185  186  186  160  168  207
chunk_scan_kernel<128,2>                                      256 x1   0+86176     168  182  183  183  157  168  201
chunk_scan_kernel<128,3>                                      256 x1   0+101024    202  217  216  216  201  205  239
chunk_scan_kernel<256,1>                                      128 x1   0+126176    218  214  213  213  207  221  219
chunk_scan_kernel<64,1>                                       128 x1   0+38432     164  181  182  182  160  171  204
chunk_scan_kernel<64,2>                                       256 x1   0+52256     167  181  181  181  158  167  207
chunk_scan_kernel<64,3>                                       256 x1   0+63648     209  215  215  215  200  206  236
layer_kernel<StepTraits<128,(TileAccess)0,true>,(StepMode)5>  256 x1   12352+4096  4    4    4    4    158  162  160
layer_kernel<StepTraits<128,(TileAccess)1,true>,(StepMode)5>  256 x1   12352+4096  4    4    4    4    152  154  156
layer_kernel<StepTraits<256,(TileAccess)0,true>,(StepMode)5>  256 x1   20544+2048  4    4    4    4    166  166  164
layer_kernel<StepTraits<256,(TileAccess)1,true>,(StepMode)5>  256 x1   20544+2048  4    4    4    4    156  158  156
layer_kernel<StepTraits<64,(TileAccess)0,true>,(StepMode)5>   256 x1   8256+8192   4    4    4    4    157  156  158
layer_kernel<StepTraits<64,(TileAccess)1,true>,(StepMode)5>   256 x1   8256+8192   4    4    4    4    156  156  157""",
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
    monkeypatch.setitem(compiler.SOURCES, "gpu", ["cuda/gdn_gates.cu"])
    monkeypatch.setitem(compiler.SOURCES, "cuda", [])
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

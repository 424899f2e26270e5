"""Runs RDNA code objects on the CPU: docs/rocm.md.

``toolchain`` compiles and keeps the results, ``code_object`` reads what the compiler made, ``engine`` is the C++
library in engine/ that decodes and executes it, ``runner`` launches kernels on arrays, ``ops`` runs whole ops.
"""

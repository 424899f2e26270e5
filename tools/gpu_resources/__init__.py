"""What the CUDA kernels use of a GPU, by the compiler's report: docs/resources.md. No GPU is needed.

``compiler`` compiles and keeps the results, ``kernels`` reads them, ``occupancy`` says how many blocks a multiprocessor
holds, ``ceilings`` what no kernel may exceed, ``table`` prints.
"""

// GDN_HD: a function of the processor and of the card alike.
#pragma once

#if defined(__CUDACC__) || defined(__HIPCC__)
#define GDN_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__)
#define GDN_HD inline __attribute__((always_inline))
#else
#define GDN_HD inline
#endif

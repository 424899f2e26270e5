// Everything between GDN_TARGET_BEGIN and GDN_TARGET_END is compiled for the named instruction set extensions. Standard
// headers are included before it: their inline functions must stay callable by every instruction set.
#pragma once

#define GDN_PRAGMA(...) _Pragma(#__VA_ARGS__)
#if defined(__clang__)
#define GDN_TARGET_BEGIN(list) GDN_PRAGMA(clang attribute push(__attribute__((target(list))), apply_to = function))
#define GDN_TARGET_END GDN_PRAGMA(clang attribute pop)
#else
#define GDN_TARGET_BEGIN(list) GDN_PRAGMA(GCC push_options) GDN_PRAGMA(GCC target(list))
#define GDN_TARGET_END GDN_PRAGMA(GCC pop_options)
#endif

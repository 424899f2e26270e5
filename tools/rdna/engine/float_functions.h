// What single floating-point instructions compute.
#pragma once

#include <cstdint>

#include "state.h"

namespace rdna {

float reciprocal(float x);
float reciprocal_root(float x);
float root(float x);
float power_of_two(float x);
float binary_logarithm(float x);
// A finite result that is not zero, moved by a unit in the last place: up to one and a half from the true value.
float moved(float x, Ulp ulp);
// 1/x as the float above or below it: within a unit of the true value.
float reciprocal_beside(float x, Ulp ulp);

float larger(float a, float b);  // the number where one is a NaN, +0 above -0
float smaller(float a, float b);
float mantissa(float x);  // in [0.5, 1)
int32_t exponent(float x);
uint32_t to_u32(float x);  // towards zero, saturated, 0 for a NaN
int32_t to_i32(float x);
_Float16 toward_zero(float x);

// The three instructions around the Newton steps of a division.
struct DivScale {
  float value;
  bool rescale;  // divide_fmas has to undo a scaling
};
DivScale divide_scale(float value, float denominator, float numerator);
float divide_fmas(float a, float b, float c, bool rescale);
float divide_fixup(float quotient, float denominator, float numerator);

// Whether x is of one of the mask's classes: signalling NaN, quiet NaN, -inf, -normal, -denormal, -0, +0, +denormal,
// +normal, +inf.
bool is_of_class(float x, uint32_t mask);

}  // namespace rdna

// What the kernels have in common: one row at a time.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using i64 = int64_t;

static const i64 SMALL = 16384;  // numbers below which threads cost more than they give

// exp(x) to 2 units in the last place, NaN for NaN; in a form that compilers vectorise.
static inline float fast_exp(float x) {
    float y = x > 88.3f ? 88.3f : x;
    y = y < -87.3f ? -87.3f : y;
    const float n = std::nearbyint(y * 1.44269504f);
    float r = y - n * 0.693359375f;
    r = r + n * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    union { uint32_t i; float f; } scale;
    scale.i = static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23;
    return p * scale.f;
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

static inline float dot(const float *a, const float *b, i64 n) {
    float s = 0.0f;
#pragma omp simd reduction(+ : s)
    for (i64 i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

// y = x r (w + offset), r = 1 / sqrt(mean(x^2) + eps): a row of n numbers, in place if need be. Returns r.
static inline float norm_row(const float *x, const float *w, float *y, i64 n, float eps, float offset) {
    const float scale = 1.0f / std::sqrt(dot(x, x, n) / n + eps);
#pragma omp simd
    for (i64 i = 0; i < n; i++) y[i] = x[i] * scale * (w[i] + offset);
    return scale;
}

// y = x cos + rotate_half(x) sin: a row of 2 half numbers, in place if need be.
static inline void turn_row(const float *x, const float *cos, const float *sin, float *y, i64 half) {
#pragma omp simd
    for (i64 i = 0; i < half; i++) {
        const float low = x[i], high = x[i + half];
        y[i] = low * cos[i] - high * sin[i];
        y[i + half] = high * cos[i + half] + low * sin[i + half];
    }
}

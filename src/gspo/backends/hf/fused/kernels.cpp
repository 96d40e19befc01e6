// Small operations of a transformer on a CPU, each in one pass over memory: float32, rows of contiguous numbers.
// A plain C interface and no header of torch, so that it compiles in seconds. Whatever the number of threads, each sum but
// those of matrix products is taken in one order.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

using i64 = int64_t;
using sgemm_t = void (*)(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                         const int *, const float *, const int *, const float *, float *, const int *);

static const i64 BLOCK = 64;       // rows whose part of a sum is taken together
static const i64 SMALL = 16384;    // numbers below which threads cost more than they give

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
    union { int32_t i; float f; } scale;
    scale.i = (static_cast<int32_t>(n) + 127) << 23;
    return p * scale.f;
}

static inline float sigmoid(float x) { return 1.0f / (1.0f + fast_exp(-x)); }

static inline float dot(const float *a, const float *b, i64 n) {
    float s = 0.0f;
#pragma omp simd reduction(+ : s)
    for (i64 i = 0; i < n; i++) s += a[i] * b[i];
    return s;
}

extern "C" {

// y = x r (w + offset), r = 1 / sqrt(mean(x^2) + eps) of each row; x, y [rows, n], w [n], r [rows].
void rms_norm(const float *x, const float *w, float *y, float *r, i64 rows, i64 n, float eps, float offset, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * n > SMALL)
    for (i64 row = 0; row < rows; row++) {
        const float *in = x + row * n;
        float *out = y + row * n;
        const float scale = 1.0f / std::sqrt(dot(in, in, n) / n + eps);
        r[row] = scale;
#pragma omp simd
        for (i64 i = 0; i < n; i++) out[i] = in[i] * scale * (w[i] + offset);
    }
}

// Its gradients from g [rows, n]: dx [rows, n], and dw [n] unless it is null. part [blocks of rows, n] is room for sums.
void rms_norm_backward(const float *g, const float *x, const float *w, const float *r, float *dx, float *dw, float *part,
                       i64 rows, i64 n, float offset, int threads) {
    const i64 blocks = (rows + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * n > SMALL)
    for (i64 block = 0; block < blocks; block++) {
        float *sum = dw ? part + block * n : nullptr;
        if (sum) std::memset(sum, 0, n * sizeof(float));
        for (i64 row = block * BLOCK; row < std::min(rows, (block + 1) * BLOCK); row++) {
            const float *in = x + row * n, *grad = g + row * n;
            float *out = dx + row * n;
            const float scale = r[row];
            float along = 0.0f;
#pragma omp simd reduction(+ : along)
            for (i64 i = 0; i < n; i++) along += grad[i] * (w[i] + offset) * in[i];
            along *= scale * scale / n;
#pragma omp simd
            for (i64 i = 0; i < n; i++) out[i] = scale * (grad[i] * (w[i] + offset) - in[i] * along);
            if (sum) {
#pragma omp simd
                for (i64 i = 0; i < n; i++) sum[i] += grad[i] * in[i] * scale;
            }
        }
    }
    if (!dw) return;
    std::memset(dw, 0, n * sizeof(float));
    for (i64 block = 0; block < blocks; block++)
        for (i64 i = 0; i < n; i++) dw[i] += part[block * n + i];
}

// Rotary embeddings: y = x cos + rotate_half(x) sin, or with back the gradient of that. x and y are [b, heads, l, n] by the
// strides that are given (n contiguous), cos and sin [1 or b, l, n].
void rotary(const float *x, const i64 *xs, float *y, const i64 *ys, const float *cos, const float *sin, i64 angles, i64 b,
            i64 heads, i64 l, i64 n, int back, int threads) {
    const i64 half = n / 2;
#pragma omp parallel for num_threads(threads) schedule(static) if (b * l * heads * n > SMALL)
    for (i64 at = 0; at < b * l; at++) {
        const i64 row = at / l, t = at % l;
        const float *c = cos + ((angles > 1 ? row : 0) * l + t) * n, *s = sin + (c - cos);
        for (i64 head = 0; head < heads; head++) {
            const float *in = x + row * xs[0] + head * xs[1] + t * xs[2];
            float *out = y + row * ys[0] + head * ys[1] + t * ys[2];
            if (back) {
#pragma omp simd
                for (i64 i = 0; i < half; i++) {
                    const float low = in[i], high = in[i + half];
                    out[i] = low * c[i] + high * s[i + half];
                    out[i + half] = high * c[i + half] - low * s[i];
                }
            } else {
#pragma omp simd
                for (i64 i = 0; i < half; i++) {
                    const float low = in[i], high = in[i + half];
                    out[i] = low * c[i] - high * s[i];
                    out[i + half] = high * c[i + half] + low * s[i + half];
                }
            }
        }
    }
}

// y = silu(gate) up: gate and up are rows of n numbers, `stride` apart; y [rows, n].
void swiglu(const float *gate, const float *up, float *y, i64 rows, i64 n, i64 stride, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * n > SMALL)
    for (i64 row = 0; row < rows; row++) {
        const float *a = gate + row * stride, *b = up + row * stride;
        float *out = y + row * n;
#pragma omp simd
        for (i64 i = 0; i < n; i++) out[i] = a[i] * sigmoid(a[i]) * b[i];
    }
}

void swiglu_backward(const float *g, const float *gate, const float *up, float *dgate, float *dup, i64 rows, i64 n,
                     i64 stride, i64 dstride, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * n > SMALL)
    for (i64 row = 0; row < rows; row++) {
        const float *a = gate + row * stride, *b = up + row * stride, *grad = g + row * n;
        float *da = dgate + row * dstride, *db = dup + row * dstride;
#pragma omp simd
        for (i64 i = 0; i < n; i++) {
            const float s = sigmoid(a[i]);
            da[i] = grad[i] * b[i] * s * (1.0f + a[i] * (1.0f - s));
            db[i] = grad[i] * a[i] * s;
        }
    }
}

// Sorts the choices [count] of experts, those of one expert in their order: order [count] are the choices, place [count] where
// each has come to stand, ends [experts] the end of each expert's. Returns 0 where there is no such expert, else 1.
int sort_choices(const i64 *chosen, i64 *order, i64 *place, int32_t *ends, i64 count, i64 experts) {
    std::vector<i64> next(experts, 0);
    for (i64 i = 0; i < count; i++) {
        if (chosen[i] < 0 || chosen[i] >= experts) return 0;
        next[chosen[i]]++;
    }
    i64 total = 0;
    for (i64 e = 0; e < experts; e++) {
        const i64 size = next[e];
        next[e] = total;
        total += size;
        ends[e] = static_cast<int32_t>(total);
    }
    for (i64 i = 0; i < count; i++) {
        const i64 to = next[chosen[i]]++;
        order[to] = i;
        place[i] = to;
    }
    return 1;
}

// out [tokens, n] = sum over the k choices of a token of weight [tokens, k] times their row of x [tokens * k, n]. weight may be
// null for ones.
void combine(const float *x, const i64 *place, const float *weight, float *out, i64 tokens, i64 k, i64 n, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (tokens * k * n > SMALL)
    for (i64 t = 0; t < tokens; t++) {
        float *to = out + t * n;
        std::memset(to, 0, n * sizeof(float));
        for (i64 j = 0; j < k; j++) {
            const float *from = x + place[t * k + j] * n, w = weight ? weight[t * k + j] : 1.0f;
#pragma omp simd
            for (i64 i = 0; i < n; i++) to[i] += w * from[i];
        }
    }
}

// The gradients of `combine` from g [tokens, n]: dx [tokens * k, n] and dweight [tokens, k].
void combine_backward(const float *g, const float *x, const i64 *place, const float *weight, float *dx, float *dweight,
                      i64 tokens, i64 k, i64 n, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (tokens * k * n > SMALL)
    for (i64 t = 0; t < tokens; t++)
        for (i64 j = 0; j < k; j++) {
            const i64 row = place[t * k + j];
            const float *grad = g + t * n, w = weight[t * k + j];
            float *to = dx + row * n;
#pragma omp simd
            for (i64 i = 0; i < n; i++) to[i] = w * grad[i];
            dweight[t * k + j] = dot(grad, x + row * n, n);
        }
}

// All of a layer's experts without gradient: x [tokens, n], chosen and weight [tokens, k], gate_up [experts, 2 width, n], down
// [experts, n, width] -> out [tokens, n]. A thread takes some rows of one expert at a time. made [tokens * k, n] is room.
// Returns as `sort_choices`.
int experts(const float *x, const i64 *chosen, const float *weight, const float *gate_up, const float *down, float *made,
             float *out, i64 tokens, i64 k, i64 n, i64 width, i64 count, sgemm_t sgemm, int threads) {
    std::vector<i64> order(tokens * k), place(tokens * k), first, last, expert;
    std::vector<int32_t> ends(count);
    if (!sort_choices(chosen, order.data(), place.data(), ends.data(), tokens * k, count)) return 0;
    for (i64 e = 0; e < count; e++)
        for (i64 at = e ? ends[e - 1] : 0; at < ends[e]; at += BLOCK) {
            first.push_back(at);
            last.push_back(std::min<i64>(ends[e], at + BLOCK));
            expert.push_back(e);
        }
    const i64 tasks = static_cast<i64>(first.size());
    const float one = 1.0f, zero = 0.0f;
    const int size_n = static_cast<int>(n), size_w = static_cast<int>(width), size_2w = 2 * size_w;
    const auto compute = [&](i64 task, float *rows, float *wide, float *narrow) {
        const int m = static_cast<int>(last[task] - first[task]);
        for (i64 i = 0; i < m; i++) std::memcpy(rows + i * n, x + order[first[task] + i] / k * n, n * sizeof(float));
        const i64 e = expert[task];
        sgemm("T", "N", &size_2w, &m, &size_n, &one, gate_up + e * 2 * width * n, &size_n, rows, &size_n, &zero, wide, &size_2w);
        for (i64 i = 0; i < m; i++) {
            const float *a = wide + i * 2 * width, *b = a + width;
            float *to = narrow + i * width;
#pragma omp simd
            for (i64 j = 0; j < width; j++) to[j] = a[j] * sigmoid(a[j]) * b[j];
        }
        float *to = made + first[task] * n;
        sgemm("T", "N", &size_n, &m, &size_w, &one, down + e * n * width, &size_w, narrow, &size_w, &zero, to, &size_n);
    };
    if (tokens * k * n > SMALL / 4 && threads > 1) {
#pragma omp parallel num_threads(threads)
        {
            std::vector<float> rows(BLOCK * n), wide(BLOCK * 2 * width), narrow(BLOCK * width);
#pragma omp for schedule(dynamic)
            for (i64 task = 0; task < tasks; task++) compute(task, rows.data(), wide.data(), narrow.data());
        }
    } else {  // outside of any team: in one of one thread each product would start threads of its own
        std::vector<float> rows(BLOCK * n), wide(BLOCK * 2 * width), narrow(BLOCK * width);
        for (i64 task = 0; task < tasks; task++) compute(task, rows.data(), wide.data(), narrow.data());
    }
    combine(made, place.data(), weight, out, tokens, k, n, threads);
    return 1;
}

}

// Eight numbers that are computed at once.
using V = float __attribute__((vector_size(32)));

static inline V load(const float *from) {
    V v;
    std::memcpy(&v, from, sizeof v);
    return v;
}

// The sums of eight vectors: neighbours, pairs and halves are added in turn.
static inline V sums(const V *a) {
    V one[4], two[2];
    for (int i = 0; i < 4; i++)
        one[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                 __builtin_shufflevector(a[2 * i], a[2 * i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    for (int i = 0; i < 2; i++)
        two[i] = __builtin_shufflevector(one[2 * i], one[2 * i + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                 __builtin_shufflevector(one[2 * i], one[2 * i + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return __builtin_shufflevector(two[0], two[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           __builtin_shufflevector(two[0], two[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

// to [count] = q [n] times each of `count` keys, plus `more` unless it is null. N: n, where it is known beforehand; else 0.
template <int N>
static void scores(const float *q, const float *keys, const float *more, float *to, i64 count, i64 any, float scale) {
    const i64 n = N ? N : any, eights = n % 8 ? 0 : count / 8 * 8;
    for (i64 p = 0; p < eights; p += 8) {
        V part[8] = {};
        for (int j = 0; j < 8; j++)
            for (i64 i = 0; i < n; i += 8) part[j] += load(q + i) * load(keys + (p + j) * n + i);
        const V all = sums(part) * scale;
        std::memcpy(to + p, &all, sizeof all);
    }
    for (i64 p = eights; p < count; p++) to[p] = dot(q, keys + p * n, n) * scale;
    for (i64 p = 0; more && p < count; p++) to[p] += more[p];
}

// out [n] += the sum of count values [n], each by its weight.
template <int N> static void look(const float *weight, const float *values, float *out, i64 count, i64 any) {
    const i64 n = N ? N : any;
    if (!N) {
        for (i64 p = 0; p < count; p++)
#pragma omp simd
            for (i64 i = 0; i < n; i++) out[i] += weight[p] * values[p * n + i];
        return;
    }
    constexpr int chains = N <= 32 ? 4 : N <= 64 ? 2 : 1, size = N ? N / 8 : 1;  // sums that do not wait for each other
    V sum[chains][size] = {};
    std::memcpy(sum[0], out, N * sizeof(float));
    i64 p = 0;
    for (; p + chains <= count; p += chains)
        for (int c = 0; c < chains; c++)
            for (int i = 0; i < size; i++) sum[c][i] += weight[p + c] * load(values + (p + c) * n + i * 8);
    for (; p < count; p++)
        for (int i = 0; i < size; i++) sum[0][i] += weight[p] * load(values + p * n + i * 8);
    for (int c = 1; c < chains; c++)
        for (int i = 0; i < size; i++) sum[0][i] += sum[c][i];
    std::memcpy(out, sum[0], N * sizeof(float));
}

// One row's head group of `attend`: `each` queries q, their scores over all keys, and what they look at.
template <int N>
static void attend_group(const float *q, const float *prompt_k, const float *prompt_v, const float *bias, const float *own_k,
                         const float *own_v, float *score, float *out, i64 each, i64 any, i64 length, i64 own, float scale) {
    const i64 n = N ? N : any, all = length + own;
    for (i64 h = 0; h < each; h++) {
        float *to = out + h * n, most, sum = 0.0f;
        scores<N>(q + h * n, prompt_k, bias, score, length, n, scale);
        scores<N>(q + h * n, own_k, nullptr, score + length, own, n, scale);
        most = score[0];
#pragma omp simd reduction(max : most)
        for (i64 p = 0; p < all; p++) most = std::max(most, score[p]);
#pragma omp simd reduction(+ : sum)
        for (i64 p = 0; p < all; p++) sum += score[p] = fast_exp(score[p] - most);
        std::memset(to, 0, n * sizeof(float));
        look<N>(score, prompt_v, to, length, n);
        look<N>(score + length, own_v, to, own, n);
        for (i64 i = 0; i < n; i++) to[i] /= sum;
    }
}

extern "C" {

// Attention of one token a row: q [rows, groups * each, n]. A row looks at its prompt's keys and values, [prompts, groups,
// length, n], to whose scores bias [prompts, length] is added (null: nothing), and at `own` of its own, [rows, groups, own, n],
// a row and a group of them the given strides apart. -> out [rows, groups * each, n].
void attend(const float *q, const float *prompt_k, const float *prompt_v, const i64 *prompt_of, const float *bias,
            const float *own_k, const float *own_v, const i64 *strides, float *out, i64 rows, i64 groups, i64 each, i64 n,
            i64 length, i64 own, float scale, int threads) {
    const auto known = n == 24    ? attend_group<24>
                       : n == 32  ? attend_group<32>
                       : n == 64  ? attend_group<64>
                       : n == 80  ? attend_group<80>
                       : n == 96  ? attend_group<96>
                       : n == 128 ? attend_group<128>
                                  : attend_group<0>;
#pragma omp parallel num_threads(threads) if (rows * groups * each * (length + own) > SMALL / 16)
    {
        std::vector<float> score(length + own);
#pragma omp for schedule(static)
        for (i64 at = 0; at < rows * groups; at++) {
            const i64 row = at / groups, group = at % groups, prompt = prompt_of[row];
            const i64 start = (prompt * groups + group) * length * n, start_own = row * strides[0] + group * strides[1];
            known(q + at * each * n, prompt_k + start, prompt_v + start, bias ? bias + prompt * length : nullptr,
                  own_k + start_own, own_v + start_own, score.data(), out + at * each * n, each, n, length, own, scale);
        }
    }
}
}

// Small operations of a transformer on a CPU, each in one pass over memory: float32, rows of contiguous numbers.
// A plain C interface and no header of torch, so that it compiles in seconds. Whatever the number of threads, each sum but
// those of matrix products is taken in one order.
#include "numbers.h"

using sgemm_t = void (*)(const char *, const char *, const int *, const int *, const int *, const float *, const float *,
                         const int *, const float *, const int *, const float *, float *, const int *);

static const i64 BLOCK = 64;  // rows, or words, whose part of a sum is taken together

extern "C" {

// y = x r (w + offset), r = 1 / sqrt(mean(x^2) + eps) of each row; x, y [rows, n], w [n], r [rows].
void rms_norm(const float *x, const float *w, float *y, float *r, i64 rows, i64 n, float eps, float offset, int threads) {
#pragma omp parallel for num_threads(threads) schedule(static) if (rows * n > SMALL)
    for (i64 row = 0; row < rows; row++) r[row] = norm_row(x + row * n, w, y + row * n, n, eps, offset);
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
                turn_row(in, c, s, out, half);
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

// A word a row by inverse CDF: logits [rows, n] / temperature, uniform [rows] in [0, 1) -> word [rows] and its log-probability
// logp [rows]: NaN for a row with NaN or inf in it, or in which no word is possible (-inf).
void draw(const float *logits, const float *uniform, float temperature, i64 *word, float *logp, i64 rows, i64 n, int threads) {
    const i64 blocks = (n + BLOCK - 1) / BLOCK;
#pragma omp parallel num_threads(threads) if (rows * n > SMALL)
    {
        std::vector<float> p(n);
        std::vector<double> mass(blocks);
#pragma omp for schedule(static)
        for (i64 row = 0; row < rows; row++) {
            const float *in = logits + row * n;
            float most = in[0] / temperature;
            double all = 0.0;
#pragma omp simd reduction(max : most)
            for (i64 i = 0; i < n; i++) most = std::max(most, in[i] / temperature);
            for (i64 b = 0; b < blocks; b++) {
                float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
                for (i64 i = b * BLOCK; i < std::min(n, (b + 1) * BLOCK); i++) {
                    const float less = in[i] / temperature - most, e = fast_exp(less);
                    p[i] = less < -87.0f ? 0.0f : e;  // a word that is impossible stays so
                    sum += p[i];
                }
                mass[b] = sum;
                all += sum;
            }
            const double target = uniform[row] * all;
            double below = 0.0;
            i64 at = 0, found = 0;  // the last possible word so far: rounding may put the target beyond its block
            for (i64 b = 0; b < blocks && below + mass[b] <= target; b++) below += mass[b], at += BLOCK;
            bool past = false;
            for (at = std::min(at, (n - 1) / BLOCK * BLOCK); at < n && !past; at++) {
                below += p[at];
                if (p[at] > 0.0f) found = at;
                past = below > target;
            }
            word[row] = found;
            logp[row] = static_cast<float>((in[found] / temperature - most) - std::log(all));
        }
    }
}
}

// Attention of one new token a row, while sampling: float32, on a CPU. Each row reads its prompt's keys and values and its own.
#include "numbers.h"

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

// `attend_group` for rows of n numbers.
static decltype(&attend_group<0>) group_of(i64 n) {
    return n == 24    ? attend_group<24>
           : n == 32  ? attend_group<32>
           : n == 64  ? attend_group<64>
           : n == 80  ? attend_group<80>
           : n == 96  ? attend_group<96>
           : n == 128 ? attend_group<128>
                      : attend_group<0>;
}

extern "C" {

// Attention of one token a row: q [rows, groups * each, n]. A row looks at its prompt's keys and values, [prompts, groups,
// length, n], to whose scores bias [prompts, length] is added (null: nothing), and at `own` of its own, [rows, groups, own, n],
// a row and a group of them the given strides apart. -> out [rows, groups * each, n].
void attend(const float *q, const float *prompt_k, const float *prompt_v, const i64 *prompt_of, const float *bias,
            const float *own_k, const float *own_v, const i64 *strides, float *out, i64 rows, i64 groups, i64 each, i64 n,
            i64 length, i64 own, float scale, int threads) {
    const auto known = group_of(n);
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

// All that a layer does, n even, between its projections and its output's: q [rows, groups * each, n], new keys k and values v [rows,
// groups, n]. Each n numbers of q and k are normalised, unless their weights w are null, and turned by cos and sin [1 or rows,
// n]; the key and the value are put behind the `own` that are there, and all is looked at as by `attend` -> out.
void attend_step(const float *q, const float *k, const float *v, const float *q_w, const float *k_w, float eps, float offset,
                 const float *cos, const float *sin, i64 angles, const float *prompt_k, const float *prompt_v,
                 const i64 *prompt_of, const float *bias, float *own_k, float *own_v, const i64 *strides, float *out, i64 rows,
                 i64 groups, i64 each, i64 n, i64 length, i64 own, float scale, int threads) {
    const auto known = group_of(n);
#pragma omp parallel num_threads(threads) if (rows * groups * each * (length + own) > SMALL / 16)
    {
        std::vector<float> score(length + own + 1), turned(each * n);
#pragma omp for schedule(static)
        for (i64 at = 0; at < rows * groups; at++) {
            const i64 row = at / groups, group = at % groups, prompt = prompt_of[row];
            const i64 start = (prompt * groups + group) * length * n, start_own = row * strides[0] + group * strides[1];
            const float *c = cos + (angles > 1 ? row : 0) * n, *s = sin + (angles > 1 ? row : 0) * n;
            const auto ready = [&](const float *x, const float *w, float *to) {
                if (w) norm_row(x, w, to, n, eps, offset);
                turn_row(w ? to : x, c, s, to, n / 2);
            };
            ready(k + at * n, k_w, own_k + start_own + own * n);
            std::memcpy(own_v + start_own + own * n, v + at * n, n * sizeof(float));
            for (i64 h = 0; h < each; h++) ready(q + (at * each + h) * n, q_w, turned.data() + h * n);
            known(turned.data(), prompt_k + start, prompt_v + start, bias ? bias + prompt * length : nullptr,
                  own_k + start_own, own_v + start_own, score.data(), out + at * each * n, each, n, length, own + 1, scale);
        }
    }
}
}

/* The keyed bijection of 0 .. n-1 of order/feistel.py, number for number.
 *
 * Numbers go through the rounds in blocks of 64, round after round, so that the multiplications of different numbers
 * overlap: one number alone is a chain of dependent steps. See feistel.py for why the upper half is modular. */
#include "core.h"

#define BLOCK 64
#define FACTOR UINT64_C(0xC4CEB9FE1A85EC53) /* the second multiplier of MurmurHash3's 64-bit finaliser */

typedef struct {
    uint64_t heights;
    unsigned low_bits, high_bits;
    const uint64_t *constants;
    int rounds;
} network;

static inline uint64_t hashed(uint64_t half, uint64_t factor, uint64_t term) {
    uint64_t h = half * factor + term;
    h ^= h >> 32;
    return h * FACTOR;
}

static inline uint64_t smaller(uint64_t a, uint64_t b) { return a < b ? a : b; }

static void one_round(const network *net, int index, int inverted, uint64_t *restrict high, uint64_t *restrict low,
                      const uint64_t *restrict tweaks, int count) {
    uint64_t factor = net->constants[2 * index] | 1, term = net->constants[2 * index + 1], heights = net->heights;
    unsigned high_bits = net->high_bits, high_shift = 64 - net->high_bits, low_shift = 64 - net->low_bits;
    if (index % 2 == 1) {
        if (net->low_bits == 0) return;
        for (int i = 0; i < count; i++) low[i] ^= hashed(high[i], factor, term + tweaks[i]) >> low_shift;
    } else if (inverted) {
        for (int i = 0; i < count; i++) {
            uint64_t step = (hashed(low[i], factor, term + tweaks[i]) >> high_bits) * heights >> high_shift;
            uint64_t back = high[i] - step; /* below zero it is huge, so the smaller of the two is the residue */
            high[i] = smaller(back, back + heights);
        }
    } else {
        for (int i = 0; i < count; i++) {
            uint64_t step = (hashed(low[i], factor, term + tweaks[i]) >> high_bits) * heights >> high_shift;
            uint64_t sum = high[i] + step;
            high[i] = smaller(sum, sum - heights);
        }
    }
}

static void pass(const network *net, uint64_t *numbers, const uint64_t *tweaks, int count, int inverted) {
    uint64_t high[BLOCK], low[BLOCK], mask = (UINT64_C(1) << net->low_bits) - 1;
    for (int i = 0; i < count; i++) {
        high[i] = numbers[i] >> net->low_bits;
        low[i] = numbers[i] & mask;
    }
    for (int r = 0; r < net->rounds; r++) {
        one_round(net, inverted ? net->rounds - 1 - r : r, inverted, high, low, tweaks, count);
    }
    for (int i = 0; i < count; i++) numbers[i] = high[i] << net->low_bits | low[i];
}

int64_t lt_permute(uint64_t *numbers, int64_t count, uint64_t n, const uint64_t *constants, int rounds,
                   const uint64_t *tweaks, int inverted) {
    static const uint64_t none[BLOCK] = {0};
    for (int64_t i = 0; i < count; i++) {
        if (numbers[i] >= n) return i; /* outside, walking might never end; nothing has been changed yet */
    }
    if (n < 2) return -1;
    unsigned bits = 64 - (unsigned)__builtin_clzll(n - 1);
    network net = {.low_bits = bits / 2, .constants = constants, .rounds = rounds};
    net.heights = ((n - 1) >> net.low_bits) + 1;
    net.high_bits = 64 - (unsigned)__builtin_clzll(net.heights - 1);
    for (int64_t start = 0; start < count; start += BLOCK) {
        int many = count - start < BLOCK ? (int)(count - start) : BLOCK;
        const uint64_t *words = tweaks ? tweaks + start : none;
        pass(&net, numbers + start, words, many, inverted);
        for (int i = 0; i < many; i++) { /* few land at n or above: they go through again, alone */
            while (numbers[start + i] >= n) pass(&net, numbers + start + i, words + (tweaks ? i : 0), 1, inverted);
        }
    }
    return -1;
}

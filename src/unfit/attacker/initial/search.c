/* Seeds of MT19937 whose first outputs, or whose outputs at any fixed place, are like the values that are given.

   The same as in search.py, which explains it, several times faster: 64 seeds at a time, in eight vectors. */

#include <stdint.h>

typedef uint32_t words __attribute__((vector_size(32)));
typedef int32_t integers __attribute__((vector_size(32)));
typedef float reals __attribute__((vector_size(32)));

enum { VECTORS = 8, WIDTH = 8, LANES = VECTORS * WIDTH, SIZE = 624, MIDDLE = 397, MOST = 227 };

#define FOR_VECTORS _Pragma("GCC unroll 8") for (int l = 0; l < VECTORS; l++)
#define STEP(x, j) (1812433253u * ((x) ^ ((x) >> 30)) + (uint32_t)(j))

/* the 24 bits that make up a number; where only 21 are in this output, the lower ones are left out */
#define NUMBER(v, shift) (((shift) < 0 ? (v) << -(shift) : (v) >> (shift)) & 0xFFFFFFu)

#define TWISTED(low, next, high, type)                                                  \
    ({                                                                                  \
        type y = ((low) & 0x80000000u) | ((next) & 0x7FFFFFFFu);                        \
        type v = (high) ^ (y >> 1) ^ ((-(y & 1u)) & 0x9908B0DFu);                       \
        v ^= v >> 11;                                                                   \
        v ^= (v << 7) & 0x9D2C5680u;                                                    \
        v ^= (v << 15) & 0xEFC60000u;                                                   \
        v ^ (v >> 18);                                                                  \
    })

/* What one seed scores on `num` values: the second, longer test. */
static double score(uint32_t seed, int stride, int shift, const float *weight, int num)
{
    uint32_t x[SIZE];
    double sum = 0;
    x[0] = seed;
    for (int j = 1; j <= MIDDLE + stride * (num - 1); j++) x[j] = STEP(x[j - 1], j);
    for (int i = 0; i < num; i++) {
        int j = stride * i;
        uint32_t v = TWISTED(x[j], x[j + 1], x[j + MIDDLE], uint32_t);
        sum += weight[i] * (double)(NUMBER(v, shift));
    }
    return sum;
}

/* The seeds of first … first + count − 1 that pass both tests; returns how many, at most `room`. */
int64_t seeds_at_first(uint64_t first, uint64_t count, int stride, int shift, const float *short_weight, int short_num,
                       float short_limit, const float *long_weight, int long_num, float long_limit, uint32_t *found,
                       int64_t room)
{
    int64_t num_found = 0;
    int last = stride * (short_num - 1);
    words low[MOST + 1][VECTORS], high[MOST][VECTORS];
    for (uint64_t block = 0; block < count; block += LANES) {
        words x[VECTORS] = {{0}};
        reals sum[VECTORS];
        FOR_VECTORS
        {
            for (int i = 0; i < WIDTH; i++) x[l][i] = (uint32_t)(first + block + l * WIDTH + i);
            low[0][l] = x[l];
            sum[l] = (reals){0};
        }
        for (int j = 1; j <= last + 1; j++) FOR_VECTORS low[j][l] = x[l] = STEP(x[l], j);
        for (int j = last + 2; j < MIDDLE; j++) FOR_VECTORS x[l] = STEP(x[l], j);
        for (int j = MIDDLE; j <= MIDDLE + last; j++) FOR_VECTORS high[j - MIDDLE][l] = x[l] = STEP(x[l], j);
        for (int i = 0; i < short_num; i++) {
            int j = stride * i;
            FOR_VECTORS
            {
                words v = TWISTED(low[j][l], low[j + 1][l], high[j][l], words);
                integers value = (integers)NUMBER(v, shift);
                sum[l] += short_weight[i] * __builtin_convertvector(value, reals);
            }
        }
        for (int k = 0; k < LANES; k++) {
            if (sum[k / WIDTH][k % WIDTH] < short_limit || block + k >= count) continue;
            uint32_t seed = (uint32_t)(first + block + k);
            if (score(seed, stride, shift, long_weight, long_num) < long_limit) continue;
            if (num_found < room) found[num_found] = seed;
            num_found++;
        }
    }
    return num_found;
}

/* The word before x_j: STEP backwards, with the inverse of its factor modulo 2^32. */
static uint32_t before(uint32_t x, int j)
{
    uint32_t mixed = (x - (uint32_t)j) * 2520285293u;
    return mixed ^ (mixed >> 30);
}

/* Seeds by their word x_place, of which all from first on are tried. Whether two numbers are above a half, 227 apart, is
   one question: they differ where the word `place + k` has an odd number of the bits in `mask`. The top bit of the
   masked word times `gather` says so. A weight counts as it is where they are the same, negative where they differ. */
int64_t seeds_by_pairs(uint64_t first, uint64_t count, int place, uint32_t mask, uint32_t gather, const float *weight,
                       int short_num, float short_limit, int num, float limit, int shift, const float *long_weight,
                       int long_num, float long_limit, uint32_t *found, int64_t room)
{
    int64_t num_found = 0;
    for (uint64_t block = 0; block < count; block += LANES) {
        words x[VECTORS] = {{0}};
        reals sum[VECTORS];
        FOR_VECTORS
        {
            for (int i = 0; i < WIDTH; i++) x[l][i] = (uint32_t)(first + block + l * WIDTH + i);
            sum[l] = (reals){0};
        }
        for (int k = 0; k < short_num; k++) {
            words own = (words)((reals){0} + weight[k]);
            FOR_VECTORS
            {
                x[l] = STEP(x[l], place + k + 1);
                sum[l] += (reals)(own ^ (((x[l] & mask) * gather) & 0x80000000u));
            }
        }
        for (int i = 0; i < LANES; i++) {
            if (sum[i / WIDTH][i % WIDTH] < short_limit || block + i >= count) continue;
            uint32_t seed = (uint32_t)(first + block + i), word = x[i / WIDTH][i % WIDTH];
            double more = sum[i / WIDTH][i % WIDTH];
            for (int k = short_num; k < num; k++) {
                word = STEP(word, place + k + 1);
                more += ((word & mask) * gather) >> 31 ? -weight[k] : weight[k];
            }
            if (more < limit) continue;
            for (int j = place; j > 0; j--) seed = before(seed, j);
            if (score(seed, 1, shift, long_weight, long_num) < long_limit) continue;
            if (num_found < room) found[num_found] = seed;
            num_found++;
        }
    }
    return num_found;
}

static int parity(uint32_t x) { return __builtin_popcount(x) & 1; }

/* The same where a bit of an output is the parity of the seeded state under a mask of 624 words. The weights of the
   bits that are set are added, and after each bit the sum must reach its limit. All seeds are tried on the first
   `first_num` bits (an even number), and those that are left on the others, one bit after the other. */
int64_t seeds_by_masks(uint64_t first, uint64_t count, const uint32_t *mask, const float *weight, const float *limit,
                       int first_num, int num, uint32_t *found, int64_t room)
{
    int64_t num_found = 0;
    words state[SIZE][VECTORS];
    for (uint64_t block = 0; block < count; block += LANES) {
        words x[VECTORS] = {{0}};
        float sum[LANES] = {0};
        FOR_VECTORS
        {
            for (int i = 0; i < WIDTH; i++) x[l][i] = (uint32_t)(first + block + l * WIDTH + i);
            state[0][l] = x[l];
        }
        for (int j = 1; j < SIZE; j++) FOR_VECTORS state[j][l] = x[l] = STEP(x[l], j);
        for (int b = 0; b < first_num; b += 2)
            for (int half = 0; half < VECTORS; half += 4) { /* two bits and four vectors: sums stay in registers */
                words one[4] = {{0}}, other[4] = {{0}};
                for (int j = 0; j < SIZE; j++) {
                    uint32_t p = mask[b * SIZE + j], q = mask[(b + 1) * SIZE + j];
                    _Pragma("GCC unroll 4") for (int l = 0; l < 4; l++)
                    {
                        one[l] ^= state[j][half + l] & p;
                        other[l] ^= state[j][half + l] & q;
                    }
                }
                for (int k = 0; k < 4 * WIDTH; k++) {
                    sum[half * WIDTH + k] += weight[b] * parity(one[k / WIDTH][k % WIDTH]);
                    sum[half * WIDTH + k] += weight[b + 1] * parity(other[k / WIDTH][k % WIDTH]);
                }
            }
        for (int k = 0; k < LANES; k++) {
            if (sum[k] < limit[first_num - 1] || block + k >= count) continue;
            uint32_t own[SIZE];
            int b = first_num;
            for (int j = 0; j < SIZE; j++) own[j] = state[j][k / WIDTH][k % WIDTH];
            for (; b < num; b++) {
                uint32_t bits = 0;
                for (int j = 0; j < SIZE; j++) bits ^= own[j] & mask[b * SIZE + j];
                sum[k] += weight[b] * parity(bits);
                if (sum[k] < limit[b]) break;
            }
            if (b < num) continue;
            if (num_found < room) found[num_found] = (uint32_t)(first + block + k);
            num_found++;
        }
    }
    return num_found;
}

/* For each place, in rising order, the mask over the state whose parity is one bit of the output there: `taps` are the
   bits of a word that make it up. `bits` holds, for each of the 624 words and each bit in it, the mask over the state; it
   is brought forward one word after the other. The same as in state.py, which explains it. */
void equations(uint32_t (*bits)[32][SIZE], const int64_t *place, int64_t num_places, const int64_t *taps, int num_taps,
               uint32_t (*found)[SIZE])
{
    int64_t done = 0;
    for (int64_t n = 0; done < num_places; n++) {
        uint32_t(*own)[SIZE] = bits[n % SIZE], (*low)[SIZE] = bits[(n + 1) % SIZE];
        uint32_t(*middle)[SIZE] = bits[(n + MIDDLE) % SIZE];
        for (int b = 0; b < 32; b++) {
            const uint32_t *next = b < 30 ? low[b + 1] : own[31]; /* of bit 31 nothing but the middle word is left */
            uint32_t with_next = b < 31 ? ~0u : 0, with_lowest = 0x9908B0DFu >> b & 1 ? ~0u : 0;
            for (int w = 0; w < SIZE; w++)
                own[b][w] = middle[b][w] ^ (next[w] & with_next) ^ (low[0][w] & with_lowest);
        }
        for (; done < num_places && place[done] == n; done++)
            for (int w = 0; w < SIZE; w++) {
                uint32_t sum = 0;
                for (int t = 0; t < num_taps; t++) sum ^= own[taps[t]][w];
                found[done][w] = sum;
            }
    }
}

/* To each of the rows the sum of four rows, one of each table of 256, which the bytes of `added` say. */
void add_rows(uint32_t *rows, int64_t stride, int64_t num_rows, const uint32_t *table, int width, const uint32_t *added)
{
    for (int64_t i = 0; i < num_rows; i++) {
        const uint32_t *part[4];
        for (int k = 0; k < 4; k++) part[k] = table + ((int64_t)k * 256 + (added[i] >> 8 * k & 255)) * width;
        uint32_t *row = rows + i * stride;
        for (int w = 0; w < width; w++) row[w] ^= part[0][w] ^ part[1][w] ^ part[2][w] ^ part[3][w];
    }
}

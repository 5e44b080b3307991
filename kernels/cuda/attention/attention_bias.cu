/* Biases for Isotron's attention kernels (ALiBi or a relative position bias), which depend on the distance
 * between query and key. For each head, the kernels read a table of biases by distance. For a relative
 * position bias, the kernels also read a table of buckets. In the backward pass, the attention kernels sum
 * the score gradients for each row and bucket. The code in this file then sums over rows in a fixed order. */
#include "kernels/cuda/attention/flash.cuh"

static RelativeBuckets buckets_of(const Call *c, const Flash &p) {
    const AttentionAttr *a = (const AttentionAttr *)c->attr;
    return relative_buckets_make(p.buckets, a->bias_max_distance, a->bias_bidirectional);
}

size_t place_bias(Flash *p, DType dtype, bool gradient, char *memory) {
    if (!p->biased) return 0;
    const size_t real = dtype == F64 ? sizeof(double) : sizeof(float),
                 table = (size_t)p->g * p->r * p->distances,
                 sums = gradient ? (size_t)p->b * p->g * p->rows * p->buckets : 0;
    const size_t sizes[] = {table * real, p->buckets ? table : 0, sums * real};
    CHECK(table < INT32_MAX / 2, "attention: biases of %d heads at %lld distances are too many", p->g * p->r,
          (long long)p->distances);
    size_t at[4] = {0};
    for (int i = 0; i < 3; i++) at[i + 1] = at[i] + (sizes[i] + 255) / 256 * 256;
    p->bias = memory, p->bucket = (uint8_t *)memory + at[1];
    p->bias_sums = gradient ? memory + at[2] : NULL;
    return at[3];
}

template <typename R>
static __global__ void tabulate(const Flash p, Cells bias, RelativeBuckets buckets, int64_t first,
                                int64_t columns) {
    GRID_LOOP(i, (int64_t)p.g * p.r * p.distances) {
        const int64_t bucket = relative_bucket(&buckets, i % p.distances - p.last_query);
        ((R *)p.bias)[i] = bias.get<R>(bucket * columns + first + i / p.distances);
        p.bucket[i] = (uint8_t)bucket;
    }
}

template <typename R> static __global__ void tabulate_alibi(const Flash p, AttentionAttr attr) {
    GRID_LOOP(i, (int64_t)p.g * p.r * p.distances) {
        ((R *)p.bias)[i] = (R)alibi_bias(&attr, i / p.distances, i % p.distances - p.last_query);
    }
}

void tabulate_bias(const Call *c, const Flash *p, const Tensor *bias) {
    const int64_t n = (int64_t)p->g * p->r * p->distances;
    const AttentionAttr *attr = (const AttentionAttr *)c->attr;
    if (!p->biased || n <= 0) return;
    if (!bias) {
        REAL_SWITCH(c->in[0]->dtype,
                    tabulate_alibi<R><<<grid_for(c, n, 256), 256, 0, stream_of(c)>>>(*p, *attr));
        LAUNCHED();
        return;
    }
    const int64_t first = attr->first_local;
    REAL_SWITCH(c->in[0]->dtype, tabulate<R><<<grid_for(c, n, 256), 256, 0, stream_of(c)>>>(
                                     *p, cells(bias), buckets_of(c, *p), first, bias->dim[1]));
    LAUNCHED();
}

/* Each thread block processes one head. Each group of 32 threads sums 32 buckets over every 32nd row of the
 * scores. */
enum { SIDE = 32 };
template <typename R>
static __global__ void __launch_bounds__(SIDE *SIDE)
    sum_rows(const Flash p, Cells dbias, int64_t first, int64_t columns, bool add) {
    __shared__ R part[SIDE][SIDE + 1];
    const int64_t head = (int64_t)blockIdx.x - first, group = head / p.r;
    const bool mine = head >= 0 && head < (int64_t)p.g * p.r;
    for (int first_bucket = 0; first_bucket < p.buckets; first_bucket += SIDE) {
        const int bucket = first_bucket + (int)threadIdx.x;
        R sum = 0;
        for (int64_t i = threadIdx.y; mine && bucket < p.buckets && i < (int64_t)p.b * p.s; i += SIDE) {
            const int64_t row = (i / p.s * p.g + group) * p.rows + head % p.r * p.s + i % p.s;
            sum += ((const R *)p.bias_sums)[row * p.buckets + bucket];
        }
        __syncthreads();
        part[threadIdx.y][threadIdx.x] = sum;
        __syncthreads();
        if (threadIdx.y || bucket >= p.buckets) continue;
        for (int i = 1; i < SIDE; i++) sum += part[i][threadIdx.x];
        dbias.put_or_add(bucket * columns + blockIdx.x, sum, add);
    }
}

void sum_bias_gradients(const Call *c, const Flash *p, const Tensor *dbias) {
    if (!dbias || !tensor_count(dbias)) return;
    const int64_t first = ((const AttentionAttr *)c->attr)->first_local, columns = dbias->dim[1];
    REAL_SWITCH(c->in[1]->dtype, sum_rows<R><<<(unsigned)columns, dim3(SIDE, SIDE), 0, stream_of(c)>>>(
                                     *p, cells(dbias), first, columns, accumulates(dbias)));
    LAUNCHED();
}

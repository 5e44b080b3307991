/* Computes the ops of kernels/cpu/gated_norm.c, which contains the formulas. A block computes one group of a row. */
#include "kernels/cuda/mamba/mamba.cuh"

template <typename T> struct Groups {
    typedef Real<T> R;
    const T *x, *z, *gain;
    int64_t rows, b, groups, m, along_s, along_b; /* m: channels per group; the last two: strides of z */
    R eps;

    __device__ __forceinline__ R input(int64_t row, int64_t j) const {
        return to_real<R>(x[row * groups * m + j]);
    }
    __device__ __forceinline__ R gate(int64_t row, int64_t j) const {
        return to_real<R>(z[row / b * along_s + row % b * along_b + j]);
    }
    __device__ __forceinline__ R weight(int64_t j) const { return to_real<R>(gain[j]); }
};

template <typename T> static Groups<T> groups_of(const Call *c, Tensor *const *in) {
    const Tensor *x = in[0], *z = in[1];
    const GatedNormAttr *a = (const GatedNormAttr *)c->attr;
    same_type("gated_norm", x, z);
    same_type("gated_norm", x, in[2]);
    return {data_of<T>(x), data_of<T>(z),  data_of<T>(in[2]),           tensor_rows(x),
            x->dim[1],     a->groups,      tensor_width(x) / a->groups, z->stride[0],
            z->stride[1],  (Real<T>)a->eps};
}

template <typename T> static unsigned blocks_of(const Call *c, const Groups<T> &o) {
    return grid_for(c, o.rows * o.groups, 1);
}

template <typename T>
static __global__ void __launch_bounds__(THREADS) normed(Groups<T> o, T *y, Real<T> *rstd) {
    typedef Real<T> R;
    __shared__ R room[32];
    for (int64_t unit = blockIdx.x; unit < o.rows * o.groups; unit += gridDim.x) {
        const int64_t row = unit / o.groups, first = unit % o.groups * o.m;
        R sum = 0;
        for (int64_t i = threadIdx.x; i < o.m; i += THREADS) {
            const R z = o.gate(row, first + i), u = o.input(row, first + i) * z * sigmoid(z);
            sum += u * u;
        }
        const R scale = 1 / sqrt(block_sum(sum, room) / (R)o.m + o.eps);
        for (int64_t i = threadIdx.x; i < o.m; i += THREADS) {
            const R z = o.gate(row, first + i), u = o.input(row, first + i) * z * sigmoid(z);
            y[unit * o.m + i] = from_real<T>(u * scale * o.weight(first + i));
        }
        if (!threadIdx.x) rstd[unit] = scale;
    }
}

template <typename T> static void forward(const Call *c) {
    const Groups<T> o = groups_of<T>(c, c->in);
    normed<T><<<blocks_of(c, o), THREADS, 0, stream_of(c)>>>(o, data_of<T>(c->out[0]),
                                                             data_of<Real<T>>(c->out[1]));
    LAUNCHED();
}

extern "C" void cuda_gated_norm(const Call *c) {
    same_type("gated_norm", c->in[0], c->out[0]);
    if (tensor_count(c->in[0])) STORAGE_SWITCH(c->in[0]->dtype, forward<T>(c));
}

template <typename T> struct Grads {
    const T *dy;
    const Real<T> *rstd;
    T *dx, *dz;               /* NULL if not needed */
    int64_t along_s, along_b; /* strides of dz */
    bool add_x, add_z;
};

template <typename T> __device__ __forceinline__ void put(T *to, Real<T> value, bool add) {
    *to = from_real<T>(add ? to_real<Real<T>>(*to) + value : value);
}

template <typename T> static __global__ void __launch_bounds__(THREADS) normed_grad(Groups<T> o, Grads<T> g) {
    typedef Real<T> R;
    __shared__ R room[32];
    for (int64_t unit = blockIdx.x; unit < o.rows * o.groups; unit += gridDim.x) {
        const int64_t row = unit / o.groups, first = unit % o.groups * o.m;
        const R rstd = g.rstd[unit];
        R along = 0;
        for (int64_t i = threadIdx.x; i < o.m; i += THREADS) {
            const R z = o.gate(row, first + i), u = o.input(row, first + i) * z * sigmoid(z);
            along += to_real<R>(g.dy[unit * o.m + i]) * o.weight(first + i) * u;
        }
        along = block_sum(along, room) * rstd * rstd / (R)o.m;
        for (int64_t i = threadIdx.x; i < o.m; i += THREADS) {
            const R z = o.gate(row, first + i), open = sigmoid(z), x = o.input(row, first + i);
            const R du =
                rstd * (to_real<R>(g.dy[unit * o.m + i]) * o.weight(first + i) - x * z * open * along);
            if (g.dx) put(g.dx + unit * o.m + i, du * z * open, g.add_x);
            if (g.dz)
                put(g.dz + row / o.b * g.along_s + row % o.b * g.along_b + first + i,
                    du * x * open * (1 + z * (1 - open)), g.add_z);
        }
    }
}

/* Writes partial [b,parts,c]. */
template <typename T>
static __global__ void gain_sums(Groups<T> o, Grads<T> g, Real<T> *partial, int64_t parts) {
    typedef Real<T> R;
    const int64_t width = o.groups * o.m, s = o.rows / o.b;
    GRID_LOOP(e, o.b * parts * width) {
        const int64_t j = e % width, part = e / width % parts, sample = e / width / parts;
        R sum = 0;
        for (int64_t t = part * PART; t < (part + 1) * PART && t < s; t++) {
            const int64_t row = t * o.b + sample;
            const R z = o.gate(row, j);
            sum += to_real<R>(g.dy[row * width + j]) *
                   (o.input(row, j) * z * sigmoid(z) * g.rstd[row * o.groups + j / o.m]);
        }
        partial[e] = sum;
    }
}

extern "C" size_t cuda_plans_gated_norm_grad(const Call *c) {
    const Tensor *x = c->in[1];
    if (!c->out[2]) return 0;
    return (size_t)(x->dim[1] * ceil_div(x->dim[0], PART) * x->dim[2]) *
           (x->dtype == F64 ? sizeof(double) : sizeof(float));
}

template <typename T> static void backward(const Call *c) {
    const Groups<T> o = groups_of<T>(c, c->in + 1);
    const Tensor *dx = c->out[0], *dz = c->out[1];
    const Grads<T> g = {data_of<T>(c->in[0]),   data_of<Real<T>>(c->in[4]), data_of<T>(dx),  data_of<T>(dz),
                        dz ? dz->stride[0] : 0, dz ? dz->stride[1] : 0,     accumulates(dx), accumulates(dz)};
    if (o.rows && (dx || dz)) {
        normed_grad<T><<<blocks_of(c, o), THREADS, 0, stream_of(c)>>>(o, g);
        LAUNCHED();
    }
    if (!c->out[2]) return;
    const size_t bytes = cuda_plans_gated_norm_grad(c);
    const int64_t width = o.groups * o.m, parts = ceil_div(c->in[1]->dim[0], PART);
    Real<T> *partial = bytes ? (Real<T> *)cuda_scratch(c->device, bytes) : NULL;
    gain_sums<T>
        <<<grid_for(c, o.b * parts * width, THREADS), THREADS, 0, stream_of(c)>>>(o, g, partial, parts);
    LAUNCHED();
    add_samples(c, partial, o.b, parts, width, 0, 1, c->out[2]);
}

extern "C" void cuda_gated_norm_grad(const Call *c) {
    same_type("gated_norm_grad", c->in[1], c->in[0]);
    same_type("gated_norm_grad", c->in[1], c->out[0]);
    same_type("gated_norm_grad", c->in[1], c->out[1]);
    STORAGE_SWITCH(c->in[1]->dtype, backward<T>(c));
}

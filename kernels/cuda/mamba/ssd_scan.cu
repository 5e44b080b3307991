/* Computes the op ssd_scan of kernels/cpu/ssd_scan.c, which contains the formulas. The states before all chunks are
 * computed first; a thread then computes an element of y. */
#include "kernels/cuda/mamba/ssd_scan.cuh"
#include "kernels/cuda/mamba/ssd_tiles.cuh"

template <typename T> static __global__ void scan_outputs(Scan<T> o, T *y) {
    typedef Real<T> R;
    GRID_LOOP(e, o.s * o.b * o.h * o.p) {
        const int64_t k = e % o.p, head = e / o.p % o.h, sample = e / o.p / o.h % o.b,
                      i = e / o.p / o.h / o.b, group = o.group_of(head);
        const R *scores = o.scores + ((sample * o.g + group) * o.s + i) * o.q;
        R sum = o.skip(head) * to_real<R>(o.x_of(sample, head, i)[k]);
        for (int64_t j = o.first_of(sample, i); j <= i; j++)
            sum += scores[j % o.q] * o.decay(sample, head, i, j) * o.delta[o.at(sample, head, j)] *
                   to_real<R>(o.x_of(sample, head, j)[k]);
        if (o.carries(sample, i)) {
            const R *state = o.states + (((sample * o.h + head) * o.chunks + i / o.q) * o.p + k) * o.n;
            const T *c = o.c_of(sample, group, i);
            R dot = 0;
            for (int64_t m = 0; m < o.n; m++) dot += state[m] * to_real<R>(c[m]);
            sum += o.decay_from_start(sample, head, i) * dot;
        }
        y[e] = from_real<T>(sum);
    }
}

extern "C" size_t cuda_plans_ssd_scan(const Call *c) {
    if (ssd_tiles_can(c, c->in)) return ssd_tiles_bytes(c);
    const ScanSizes size = scan_sizes((const ScanAttr *)c->attr, c->in);
    return (size_t)(2 * size.steps + size.scores + size.states) * size.element;
}

template <typename T> static void forward(const Call *c) {
    Real<T> *end;
    const Scan<T> o =
        scan_of<T>((const ScanAttr *)c->attr, c->in, cuda_scratch(c->device, cuda_plans_ssd_scan(c)), &end);
    prepare_scan(c, o);
    scan_outputs<T>
        <<<grid_for(c, o.s * o.b * o.h * o.p, THREADS), THREADS, 0, stream_of(c)>>>(o, data_of<T>(c->out[0]));
    LAUNCHED();
}

extern "C" void cuda_ssd_scan(const Call *c) {
    same_type("ssd_scan", c->in[0], c->out[0]);
    if (ssd_tiles_can(c, c->in))
        ssd_tiles(c);
    else if (tensor_count(c->in[0]))
        STORAGE_SWITCH(c->in[0]->dtype, forward<T>(c));
}

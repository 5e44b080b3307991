/* Describes the machine: devices and their state, links, versions of libraries, and the environment. Facts that
 * do not change between runs form the fingerprint of the machine. The functions that return the versions of
 * loaded libraries are looked up by name, so that this code also compiles without CUDA. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/amount.h"
#include "base/mem.h"
#include "base/version.h"
#include "comm/nccl/library.h"
#include "measure/nvml.h"
#include "run/provenance.h"
#include "validate/stage.h"

extern char **environ;

/* The properties that a rank reports about its device. */
typedef struct RankFacts {
    unsigned pid;
    char described[200];
    unsigned char id[16];
    double free_gib;
    int devices;
    NvmlFacts nvml;
} RankFacts;

/* ---- versions ---- */

static bool find(const char *name, void *function) {
    void *at = dlsym(RTLD_DEFAULT, name);
    memcpy(function, &at, sizeof at);
    return at;
}

static void add_versions(Outcome *out) {
    int (*of_int)(int *), version = 0;
    size_t (*of_size)(void);
    static const char *const CUDA[][2] = {{"cudaDriverGetVersion", "CUDA of the driver"},
                                          {"cudaRuntimeGetVersion", "CUDA runtime"}};
    static const char *const OTHERS[][2] = {{"cublasLtGetVersion", "cuBLASLt"}, {"cudnnGetVersion", "cuDNN"}};
    for (int i = 0; i < 2; i++)
        if (find(CUDA[i][0], &of_int) && of_int(&version) == 0)
            outcome_fact(out, true, CUDA[i][1], "%d.%d", version / 1000, version % 1000 / 10);
    for (int i = 0; i < 2; i++)
        if (find(OTHERS[i][0], &of_size)) outcome_fact(out, true, OTHERS[i][1], "%zu", of_size());
}

static void add_environment(Outcome *out) {
    static const char *const PREFIXES[] = {"NCCL_", "CUDA_",       "CUBLAS",     "CUDNN_",     "OPENBLAS_",
                                           "OMP_",  "NVIDIA_TF32", "HOST_NCCL_", "TORCH_NCCL_"};
    for (char **e = environ; *e; e++)
        for (size_t i = 0; i < sizeof PREFIXES / sizeof *PREFIXES; i++) {
            const char *equals = strchr(*e, '=');
            char name[64];
            if (!equals || strncmp(*e, PREFIXES[i], strlen(PREFIXES[i]))) continue;
            snprintf(name, sizeof name, "env %.*s", (int)(equals - *e), *e);
            outcome_fact(out, true, name, "%s", equals + 1);
            break;
        }
}

static void add_provenance(Outcome *out) {
    static const bool LASTING[FACTS] = {[FACT_CPU] = true, [FACT_CORES] = true, [FACT_BLAS_CORE] = true};
    const Provenance p = provenance_read();
    for (int i = 0; i < FACTS; i++) outcome_fact(out, LASTING[i], PROVENANCE_NAMES[i], "%s", p.text[i]);
}

/* ---- devices ---- */

static void add_links(const StageRank *r, const RankFacts *all) {
    int (*can)(int *, int, int), yes = 0;
    const int n = all[0].devices;
    Str text = {0};
    if (!stage_on_gpu(r->in) || !find("cudaDeviceCanAccessPeer", &can)) return;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n; k++)
            if (i != k && can(&yes, i, k) == 0 && !yes) str_printf(&text, " %d-%d", i, k);
    if (n > 1) outcome_fact(r->out, true, "pairs without peer access", "%s", text.s ? text.s + 1 : "none");
    str_free(&text);
}

static void judge_state(const StageRank *r, int rank, const NvmlFacts *f, const char *suspect) {
    Outcome *out = r->out;
    char name[64];
    snprintf(name, sizeof name, "state of rank %d", rank);
    outcome_fact(out, false, name,
                 "%u of %u MHz, memory %u MHz, %.0f of %.0f W, %u C, PCIe x%u of x%u, %d NVLinks", f->sm_mhz,
                 f->sm_most_mhz, f->memory_mhz, f->watts, f->limit_watts, f->celsius, f->width, f->most_width,
                 f->nvlinks);
    if (f->uncorrected)
        outcome_add(out, VALIDATE_FAIL, suspect,
                    "%" PRIu64 " uncorrected ECC errors since the driver was loaded: replace the GPU",
                    f->uncorrected);
    if (f->remap_failed)
        outcome_add(out, VALIDATE_FAIL, suspect, "a memory row could not be remapped: replace the GPU");
    if (f->remap_pending)
        outcome_add(out, VALIDATE_DEGRADED, suspect,
                    "a memory row will be remapped at the next reset: reset the GPU");
    if (*f->throttled)
        outcome_add(out, VALIDATE_DEGRADED, suspect, "its clocks are throttled: %s", f->throttled);
    if (f->width && f->width < f->most_width)
        outcome_add(out, VALIDATE_DEGRADED, suspect, "PCIe has %u of %u lanes", f->width, f->most_width);
}

static bool uses(const RankFacts *f, unsigned pid) {
    for (int i = 0; i < f->nvml.n_processes; i++)
        if (f->nvml.process[i].pid == pid) return true;
    return false;
}

/* Returns whether a process on the GPU of `f` belongs to this run. In a container, where the driver's process
 * ids differ from getpid(), a process counts as part of this run if it uses the GPUs of all ranks. */
static bool is_ours(const RankFacts *all, int n, const RankFacts *f, unsigned pid) {
    bool numbered = false, is_rank = false, everywhere = true;
    for (int i = 0; i < n; i++) {
        numbered |= uses(f, all[i].pid);
        is_rank |= all[i].pid == pid;
        everywhere &= uses(&all[i], pid);
    }
    return numbered ? is_rank : everywhere;
}

static void add_others(const StageRank *r, int rank, const RankFacts *all) {
    const RankFacts *f = &all[rank];
    Str text = {0};
    for (int i = 0; i < f->nvml.n_processes; i++) {
        const NvmlProcess *p = &f->nvml.process[i];
        if (is_ours(all, r->world, f, p->pid)) continue;
        str_printf(&text, "%s%s (pid %u)", text.len ? ", " : "", *p->name ? p->name : "unknown", p->pid);
    }
    char name[64];
    snprintf(name, sizeof name, OTHERS_OF_RANK, rank);
    if (text.len) outcome_fact(r->out, false, name, "%s", text.s);
    if (text.len)
        outcome_add(r->out, VALIDATE_PASS, stage_suspect(r, rank).s, "another process holds it: %s", text.s);
    str_free(&text);
}

static void add_device(const StageRank *r, int rank, const RankFacts *f) {
    char name[64], id[40] = "";
    snprintf(name, sizeof name, "device of rank %d", rank);
    for (int i = 0; i < 16; i++) snprintf(id + 2 * i, 3, "%02x", f->id[i]);
    outcome_fact(r->out, true, name, "%s%s%s", f->described, stage_on_gpu(r->in) ? ", UUID " : "",
                 stage_on_gpu(r->in) ? id : "");
    if (!f->nvml.known) return;
    snprintf(name, sizeof name, "driver of rank %d", rank);
    outcome_fact(r->out, true, name, "%s", f->nvml.driver);
    snprintf(name, sizeof name, "settings of rank %d", rank);
    outcome_fact(r->out, true, name, "ECC %s, power limit %.0f W, most %u MHz", f->nvml.ecc ? "on" : "off",
                 f->nvml.limit_watts, f->nvml.sm_most_mhz);
    judge_state(r, rank, &f->nvml, stage_suspect(r, rank).s);
}

/* Reports each GPU that has fewer links than other GPUs. */
static void compare_links(const StageRank *r, const RankFacts *all) {
    int most = 0;
    for (int i = 0; i < r->world; i++)
        if (all[i].nvml.nvlinks > most) most = all[i].nvml.nvlinks;
    for (int i = 0; i < r->world; i++)
        if (all[i].nvml.known && all[i].nvml.nvlinks < most)
            outcome_add(r->out, VALIDATE_DEGRADED, stage_suspect(r, i).s,
                        "%d NVLinks are up, but another GPU has %d", all[i].nvml.nvlinks, most);
}

static void add_nccl(const StageRank *r) {
    char text[32];
    Nccl n;
    if (!stage_is_nccl(r->transport) && !stage_on_gpu(r->in)) return;
    const Err e = nccl_load(r->in->config.nccl_library, &n);
    if (e.code)
        outcome_fact(r->out, true, "NCCL", "none");
    else
        outcome_fact(r->out, true, "NCCL", "%s", nccl_version_text(&n, text));
    outcome_fact(r->out, !stage_is_nccl(r->transport), "transport", "%s", r->transport);
}

static Err on_rank(StageRank *r) {
    RankFacts mine = {.pid = (unsigned)getpid(),
                      .free_gib = (double)device_memory_available(r->device) / (double)(1 << 30),
                      .devices = r->device->n_devices};
    RankFacts *all = mem_zero((size_t)r->world, sizeof *all);
    snprintf(mine.described, sizeof mine.described, "%s", r->described);
    memcpy(mine.id, r->device->id, sizeof mine.id);
    if (stage_on_gpu(r->in)) nvml_read(mine.id, &mine.nvml);
    stage_gather(r, &mine, all, sizeof mine);
    if (r->out) {
        add_provenance(r->out);
        add_versions(r->out);
        add_nccl(r);
        add_environment(r->out);
        for (int i = 0; i < r->world; i++) add_device(r, i, &all[i]), add_others(r, i, all);
        compare_links(r, all);
        add_links(r, all);
        r->out->devices = all[0].devices;
        outcome_sum_up(r->out, "%s, %s, %s", amount(r->world, "rank").s, r->described, r->transport);
        if (stage_on_gpu(r->in) && !all[0].nvml.known)
            outcome_limit(r->out,
                          "inventory: clocks, ECC and links, because libnvidia-ml.so.1 cannot be used");
    }
    free(all);
    return ERR_OK;
}

Err stage_inventory(const StageInput *in) { return stage_on_ranks(in, on_rank); }

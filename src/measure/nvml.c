#include "measure/nvml.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/mem.h"

typedef struct nvmlDevice *NvmlDevice;
typedef struct NvmlUse { /* the layout of nvmlProcessInfo_t */
    unsigned pid;
    unsigned long long bytes;
    unsigned instance, compute_instance;
} NvmlUse;

/* Each function's name and parameters. All functions return 0 on success. */
#define NVML_FUNCTIONS(F)                                                                                    \
    F(Init_v2, (void))                                                                                       \
    F(Shutdown, (void))                                                                                      \
    F(SystemGetDriverVersion, (char *, unsigned n))                                                          \
    F(DeviceGetHandleByUUID, (const char *, NvmlDevice *))                                                   \
    F(DeviceGetClockInfo, (NvmlDevice, int clock, unsigned *mhz))                                            \
    F(DeviceGetMaxClockInfo, (NvmlDevice, int clock, unsigned *mhz))                                         \
    F(DeviceGetTemperature, (NvmlDevice, int sensor, unsigned *))                                            \
    F(DeviceGetPowerUsage, (NvmlDevice, unsigned *milliwatts))                                               \
    F(DeviceGetEnforcedPowerLimit, (NvmlDevice, unsigned *milliwatts))                                       \
    F(DeviceGetCurrPcieLinkWidth, (NvmlDevice, unsigned *))                                                  \
    F(DeviceGetMaxPcieLinkWidth, (NvmlDevice, unsigned *))                                                   \
    F(DeviceGetEccMode, (NvmlDevice, int *current, int *pending))                                            \
    F(DeviceGetTotalEccErrors, (NvmlDevice, int type, int counter, unsigned long long *))                    \
    F(DeviceGetRemappedRows, (NvmlDevice, unsigned *, unsigned *, unsigned *pending, unsigned *failed))      \
    F(DeviceGetCurrentClocksThrottleReasons, (NvmlDevice, unsigned long long *))                             \
    F(DeviceGetNvLinkState, (NvmlDevice, unsigned link, int *active))
/* Functions that some drivers lack. */
#define NVML_OPTIONAL(F)                                                                                     \
    F(DeviceGetCudaComputeCapability, (NvmlDevice, int *major, int *minor))                                  \
    F(DeviceGetMaxPcieLinkGeneration, (NvmlDevice, unsigned *))                                              \
    F(DeviceGetComputeRunningProcesses_v3, (NvmlDevice, unsigned *count, NvmlUse *))                         \
    F(SystemGetProcessName, (unsigned pid, char *, unsigned n))                                              \
    F(DeviceGetNvLinkRemoteDeviceType, (NvmlDevice, unsigned link, int *type))                               \
    F(DeviceGetP2PStatus, (NvmlDevice, NvmlDevice, int capability, int *status))

enum {
    CLOCK_SM = 1,
    CLOCK_MEMORY = 2,
    SENSOR_GPU = 0,
    ECC_UNCORRECTED = 1,
    ECC_VOLATILE = 0,
    REMOTE_SWITCH = 2,
    P2P_NVLINK = 2,
    P2P_OK = 0,
    MOST_LINKS = 18
};

typedef struct Nvml {
    void *library;
#define FUNCTION(name, parameters) int(*name) parameters;
    NVML_FUNCTIONS(FUNCTION)
    NVML_OPTIONAL(FUNCTION)
#undef FUNCTION
} Nvml;

static bool load(Nvml *n) {
    n->library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!n->library) return false;
#define FUNCTION(name, parameters)                                                                           \
    {                                                                                                        \
        void *at = dlsym(n->library, "nvml" #name);                                                          \
        if (!at) return false;                                                                               \
        memcpy(&n->name, &at, sizeof at);                                                                    \
    }
    NVML_FUNCTIONS(FUNCTION)
#undef FUNCTION
#define FUNCTION(name, parameters)                                                                           \
    {                                                                                                        \
        void *at = dlsym(n->library, "nvml" #name);                                                          \
        memcpy(&n->name, &at, sizeof at);                                                                    \
    }
    NVML_OPTIONAL(FUNCTION)
#undef FUNCTION
    return true;
}

enum { IDLE = 0x1, POWER_LIMIT = 0x4 }; /* under high load, every GPU's power limit lowers its clocks */

static void name_reasons(unsigned long long bits, char *out, size_t n) {
    static const struct {
        unsigned long long bit;
        const char *name;
    } REASONS[] = {{POWER_LIMIT, "power limit"},
                   {0x8, "hardware slowdown"},
                   {0x20, "software thermal slowdown"},
                   {0x40, "hardware thermal slowdown"},
                   {0x80, "power brake"}};
    *out = 0;
    for (size_t i = 0; i < sizeof REASONS / sizeof *REASONS; i++)
        if (bits & REASONS[i].bit)
            snprintf(out + strlen(out), n - strlen(out), "%s%s", *out ? ", " : "", REASONS[i].name);
}

static void read_links(const Nvml *n, NvmlDevice d, NvmlFacts *f) {
    int on = 0, type = 0, major = 0, minor = 0;
    for (unsigned link = 0; link < MOST_LINKS; link++) {
        if (n->DeviceGetNvLinkState(d, link, &on) || !on) continue;
        f->nvlinks++;
        if (n->DeviceGetNvLinkRemoteDeviceType && n->DeviceGetNvLinkRemoteDeviceType(d, link, &type) == 0)
            f->switched += type == REMOTE_SWITCH;
    }
    if (n->DeviceGetCudaComputeCapability && n->DeviceGetCudaComputeCapability(d, &major, &minor) == 0)
        f->sm = 10 * major + minor;
    if (n->DeviceGetMaxPcieLinkGeneration) n->DeviceGetMaxPcieLinkGeneration(d, &f->pcie);
}

/* Reads the processes that use the GPU. A name is the last component of the path, without arguments. */
static void read_processes(const Nvml *n, NvmlDevice d, NvmlFacts *f) {
    enum { MOST = 64 };
    NvmlUse use[MOST];
    unsigned count = MOST;
    if (!n->DeviceGetComputeRunningProcesses_v3 || n->DeviceGetComputeRunningProcesses_v3(d, &count, use))
        return;
    for (unsigned i = 0; i < count && f->n_processes < NVML_PROCESSES; i++) {
        NvmlProcess *p = &f->process[f->n_processes++];
        char path[256] = "";
        p->pid = use[i].pid;
        if (!n->SystemGetProcessName || n->SystemGetProcessName(p->pid, path, sizeof path)) continue;
        path[strcspn(path, " ")] = 0;
        const char *slash = strrchr(path, '/');
        snprintf(p->name, sizeof p->name, "%.39s", slash ? slash + 1 : path);
    }
}

static void read_device(const Nvml *n, NvmlDevice d, NvmlFacts *f) {
    unsigned milliwatts = 0, ignored, pending = 0, failed = 0;
    unsigned long long reasons = 0, errors = 0;
    int on = 0, later;
    n->DeviceGetClockInfo(d, CLOCK_SM, &f->sm_mhz);
    n->DeviceGetMaxClockInfo(d, CLOCK_SM, &f->sm_most_mhz);
    n->DeviceGetClockInfo(d, CLOCK_MEMORY, &f->memory_mhz);
    n->DeviceGetTemperature(d, SENSOR_GPU, &f->celsius);
    if (n->DeviceGetPowerUsage(d, &milliwatts) == 0) f->watts = milliwatts * 1e-3;
    if (n->DeviceGetEnforcedPowerLimit(d, &milliwatts) == 0) f->limit_watts = milliwatts * 1e-3;
    n->DeviceGetCurrPcieLinkWidth(d, &f->width);
    n->DeviceGetMaxPcieLinkWidth(d, &f->most_width);
    if (n->DeviceGetEccMode(d, &on, &later) == 0) f->ecc = on;
    if (n->DeviceGetTotalEccErrors(d, ECC_UNCORRECTED, ECC_VOLATILE, &errors) == 0) f->uncorrected = errors;
    if (n->DeviceGetRemappedRows(d, &ignored, &ignored, &pending, &failed) == 0)
        f->remap_pending = pending, f->remap_failed = failed;
    if (n->DeviceGetCurrentClocksThrottleReasons(d, &reasons) == 0)
        name_reasons(reasons & ~(unsigned long long)POWER_LIMIT, f->throttled, sizeof f->throttled);
    read_links(n, d, f);
    read_processes(n, d, f);
}

static bool open_device(const Nvml *n, const unsigned char id[16], NvmlDevice *d) {
    char uuid[48] = "GPU-";
    for (int i = 0; i < 16; i++)
        snprintf(uuid + strlen(uuid), 4, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
    return n->DeviceGetHandleByUUID(uuid, d) == 0;
}

void nvml_read(const unsigned char id[16], NvmlFacts *f) {
    Nvml n;
    NvmlDevice d;
    *f = (NvmlFacts){.known = false};
    if (!load(&n) || n.Init_v2()) return;
    if (open_device(&n, id, &d)) {
        f->known = true;
        n.SystemGetDriverVersion(f->driver, sizeof f->driver);
        read_device(&n, d, f);
    }
    n.Shutdown();
}

/* ---- measurement under load ---- */

struct NvmlWatch {
    Nvml nvml;
    NvmlDevice device;
    pthread_t thread;
    atomic_bool ends;
    struct timespec period;
    NvmlLoad load; /* mean_mhz and mean_watts are sums until the watch ends */
    int samples;
    unsigned long long reasons;
};

static void sample(NvmlWatch *w) {
    const Nvml *n = &w->nvml;
    NvmlLoad *l = &w->load;
    unsigned mhz, celsius = 0, milliwatts = 0;
    unsigned long long reasons;
    if (n->DeviceGetCurrentClocksThrottleReasons(w->device, &reasons) || reasons & IDLE ||
        n->DeviceGetClockInfo(w->device, CLOCK_SM, &mhz))
        return;
    w->reasons |= reasons;
    if (!l->known || mhz < l->sm_mhz) l->sm_mhz = mhz;
    if (n->DeviceGetTemperature(w->device, SENSOR_GPU, &celsius) == 0 && celsius > l->celsius)
        l->celsius = celsius;
    if (n->DeviceGetPowerUsage(w->device, &milliwatts) == 0 && milliwatts * 1e-3 > l->watts)
        l->watts = milliwatts * 1e-3;
    l->mean_mhz += mhz, l->mean_watts += milliwatts * 1e-3;
    l->known = true;
    w->samples++;
}

static void *sample_until_end(void *arg) {
    NvmlWatch *w = arg;
    do {
        sample(w);
        nanosleep(&w->period, NULL);
    } while (!atomic_load(&w->ends));
    return NULL;
}

NvmlWatch *nvml_watch(const unsigned char id[16], int period_ms) {
    NvmlWatch *w = mem_zero(1, sizeof *w);
    w->period = (struct timespec){period_ms / 1000, period_ms % 1000 * 1000000L};
    const bool is_loaded = load(&w->nvml) && w->nvml.Init_v2() == 0;
    if (is_loaded && open_device(&w->nvml, id, &w->device) &&
        !pthread_create(&w->thread, NULL, sample_until_end, w))
        return w;
    if (is_loaded) w->nvml.Shutdown();
    free(w);
    return NULL;
}

NvmlLoad nvml_watch_end(NvmlWatch *w) {
    if (!w) return (NvmlLoad){.known = false};
    atomic_store(&w->ends, true);
    pthread_join(w->thread, NULL);
    w->nvml.Shutdown();
    NvmlLoad load = w->load;
    if (load.known) load.mean_mhz /= w->samples, load.mean_watts /= w->samples;
    name_reasons(w->reasons, load.limits, sizeof load.limits);
    free(w);
    return load;
}

/* ---- links ---- */

static bool is_linked(const Nvml *n, const unsigned char a[16], const unsigned char b[16]) {
    NvmlDevice from, to;
    int status = !P2P_OK;
    return open_device(n, a, &from) && open_device(n, b, &to) &&
           n->DeviceGetP2PStatus(from, to, P2P_NVLINK, &status) == 0 && status == P2P_OK;
}

bool nvml_all_linked(const unsigned char (*ids)[16], int n) {
    Nvml nvml;
    if (!load(&nvml) || !nvml.DeviceGetP2PStatus || nvml.Init_v2()) return false;
    bool all = true;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n && all; k++)
            if (i != k) all = is_linked(&nvml, ids[i], ids[k]);
    nvml.Shutdown();
    return all;
}

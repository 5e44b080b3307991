#include "acceptance/nvml.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

typedef struct nvmlDevice *NvmlDevice;

/* name, parameters; each returns 0 if it succeeds */
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

enum {
    CLOCK_SM = 1,
    CLOCK_MEMORY = 2,
    SENSOR_GPU = 0,
    ECC_UNCORRECTED = 1,
    ECC_VOLATILE = 0,
    MOST_LINKS = 18
};

typedef struct Nvml {
    void *library;
#define FUNCTION(name, parameters) int(*name) parameters;
    NVML_FUNCTIONS(FUNCTION)
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
    return true;
}

static void name_reasons(unsigned long long bits, char *out, size_t n) {
    static const struct {
        unsigned long long bit;
        const char *name;
    } REASONS[] = {{0x8, "hardware slowdown"},
                   {0x20, "software thermal slowdown"},
                   {0x40, "hardware thermal slowdown"},
                   {0x80, "power brake"}};
    *out = 0;
    for (size_t i = 0; i < sizeof REASONS / sizeof *REASONS; i++)
        if (bits & REASONS[i].bit)
            snprintf(out + strlen(out), n - strlen(out), "%s%s", *out ? ", " : "", REASONS[i].name);
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
        name_reasons(reasons, f->throttled, sizeof f->throttled);
    for (unsigned link = 0; link < MOST_LINKS; link++)
        if (n->DeviceGetNvLinkState(d, link, &on) == 0) f->nvlinks += on;
}

void nvml_read(const unsigned char id[16], NvmlFacts *f) {
    Nvml n;
    NvmlDevice d;
    char uuid[48] = "GPU-";
    *f = (NvmlFacts){.known = false};
    if (!load(&n) || n.Init_v2()) return;
    for (int i = 0; i < 16; i++)
        snprintf(uuid + strlen(uuid), 4, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
    if (n.DeviceGetHandleByUUID(uuid, &d) == 0) {
        f->known = true;
        n.SystemGetDriverVersion(f->driver, sizeof f->driver);
        read_device(&n, d, f);
    }
    n.Shutdown();
}

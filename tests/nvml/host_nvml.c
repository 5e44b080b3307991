/* A library with NVML's functions that reports two H100 GPUs, for machines without a GPU. The UUIDs of the GPUs begin
 * with a and b. Environment variables:
 *   HOST_NVML_LINKS=N   N of the 18 NVLinks of the second GPU are up; default: all
 *   HOST_NVML_LIMITS=N  bit mask of the reasons that lower the clocks of both GPUs; default: none
 *   HOST_NVML_PID=N     process N, "/usr/bin/neighbour --busy", computes on the second GPU
 *   HOST_NVML_VARIES=1  readings of clock, temperature and power cycle through three values; default: the first */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NOT_FOUND = 6, LINKS = 18, SWITCH = 2, NVLINK = 2 };

typedef const char *Device; /* its UUID */

#define FUNCTION(name, ...)                                                                                  \
    int nvml##name(__VA_ARGS__);                                                                             \
    int nvml##name(__VA_ARGS__)
#define GIVES(name, type, value)                                                                             \
    FUNCTION(name, Device d, type *out) {                                                                    \
        (void)d;                                                                                             \
        *out = value;                                                                                        \
        return 0;                                                                                            \
    }
#define GIVES_OF_KIND(name, type, value)                                                                     \
    FUNCTION(name, Device d, int kind, type *out) {                                                          \
        (void)d, (void)kind;                                                                                 \
        *out = value;                                                                                        \
        return 0;                                                                                            \
    }

static unsigned reading(atomic_uint *n, const unsigned values[3]) {
    return values[getenv("HOST_NVML_VARIES") ? atomic_fetch_add(n, 1) % 3 : 0];
}

unsigned host_nvml_power_readings(void); /* with HOST_NVML_VARIES */
static atomic_uint clock_readings, temperature_readings, power_readings;
unsigned host_nvml_power_readings(void) { return atomic_load(&power_readings); }

FUNCTION(Init_v2, void) { return 0; }
FUNCTION(Shutdown, void) { return 0; }
FUNCTION(SystemGetDriverVersion, char *out, unsigned n) {
    snprintf(out, n, "570.1");
    return 0;
}
FUNCTION(DeviceGetHandleByUUID, const char *uuid, Device *out) {
    static const char *const UUIDS[] = {"GPU-aaaaaaaa-aaaa-aaaa-aaaa-aaaaaaaaaaaa",
                                        "GPU-bbbbbbbb-bbbb-bbbb-bbbb-bbbbbbbbbbbb"};
    for (int i = 0; i < 2; i++)
        if (!strcmp(uuid, UUIDS[i])) {
            *out = UUIDS[i];
            return 0;
        }
    return NOT_FOUND;
}
GIVES_OF_KIND(DeviceGetClockInfo, unsigned, reading(&clock_readings, (const unsigned[]){1700, 1500, 1600}))
GIVES_OF_KIND(DeviceGetMaxClockInfo, unsigned, 1980)
GIVES_OF_KIND(DeviceGetTemperature, unsigned, reading(&temperature_readings, (const unsigned[]){40, 60, 50}))
GIVES(DeviceGetPowerUsage, unsigned, reading(&power_readings, (const unsigned[]){300000, 500000, 400000}))
GIVES(DeviceGetEnforcedPowerLimit, unsigned, 700000)
GIVES(DeviceGetCurrPcieLinkWidth, unsigned, 16)
GIVES(DeviceGetMaxPcieLinkWidth, unsigned, 16)
GIVES(DeviceGetMaxPcieLinkGeneration, unsigned, 5)
FUNCTION(DeviceGetCurrentClocksThrottleReasons, Device d, unsigned long long *out) {
    const char *limits = getenv("HOST_NVML_LIMITS");
    (void)d;
    *out = limits ? strtoull(limits, NULL, 10) : 0;
    return 0;
}
typedef struct Use {
    unsigned pid;
    unsigned long long bytes;
    unsigned instances[2];
} Use;
FUNCTION(DeviceGetComputeRunningProcesses_v3, Device d, unsigned *count, Use *out) {
    const char *pid = getenv("HOST_NVML_PID");
    *count = pid && d[4] == 'b';
    if (*count) *out = (Use){.pid = (unsigned)atoi(pid)};
    return 0;
}
FUNCTION(SystemGetProcessName, unsigned pid, char *out, unsigned n) {
    if (!pid) return NOT_FOUND;
    snprintf(out, n, "/usr/bin/neighbour --busy");
    return 0;
}
FUNCTION(DeviceGetEccMode, Device d, int *now, int *later) {
    (void)d;
    *now = *later = 1;
    return 0;
}
FUNCTION(DeviceGetTotalEccErrors, Device d, int type, int counter, unsigned long long *out) {
    (void)d, (void)type, (void)counter;
    *out = 0;
    return 0;
}
FUNCTION(DeviceGetRemappedRows, Device d, unsigned *a, unsigned *b, unsigned *pending, unsigned *failed) {
    (void)d;
    *a = *b = *pending = *failed = 0;
    return 0;
}
FUNCTION(DeviceGetCudaComputeCapability, Device d, int *major, int *minor) {
    (void)d;
    *major = 9, *minor = 0;
    return 0;
}
FUNCTION(DeviceGetNvLinkState, Device d, unsigned link, int *on) {
    const char *up = getenv("HOST_NVML_LINKS");
    if (link >= LINKS) return NOT_FOUND;
    *on = d[4] == 'a' || !up || (int)link < atoi(up);
    return 0;
}
FUNCTION(DeviceGetNvLinkRemoteDeviceType, Device d, unsigned link, int *type) {
    (void)d, (void)link;
    *type = SWITCH;
    return 0;
}
FUNCTION(DeviceGetP2PStatus, Device from, Device to, int capability, int *status) {
    *status = from == to || capability != NVLINK;
    return 0;
}

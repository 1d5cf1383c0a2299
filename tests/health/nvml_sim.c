/* A stand-in for libnvidia-ml.so.1, so that the real pynvml runs without a GPU.
 *
 * Every value comes from the file named by NVML_SIM, read anew at each call, one `key value` per line:
 *   gpus 2                     number of GPUs
 *   0.temperature 65           a value of GPU 0; what is absent answers NOT_SUPPORTED
 *   0.link.3.recovery 2        a counter of NVLink 3 of GPU 0;  0.link.3.up 1  its state
 *   0.lost 1                   every query of GPU 0 answers GPU_IS_LOST
 *   xid.0 1 79                 first XID event: GPU 1, code 79;  xid.1 ...  the next
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int result;
typedef struct gpu *device;
enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, DRIVER_NOT_LOADED = 9, TIMEOUT = 10, LOST = 15 };
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, dev, device_id, subsystem_id;
    char bus_id[32];
} pci_info;
typedef struct {
    device gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} event_data;

static int text(const char *key, char *value, size_t size) {
    FILE *file = fopen(getenv("NVML_SIM") ? getenv("NVML_SIM") : "", "r");
    char line[256], name[128];
    int used, found = 0;
    if (!file) return 0;
    while (!found && fgets(line, sizeof line, file))
        if (sscanf(line, "%127s %n", name, &used) == 1 && !strcmp(name, key)) {
            line[strcspn(line, "\n")] = 0;
            snprintf(value, size, "%s", line + used);
            found = 1;
        }
    fclose(file);
    return found;
}

static int number(const char *key, unsigned long long *value) {
    char found[128];
    if (!text(key, found, sizeof found)) return 0;
    *value = strtoull(found, NULL, 0);
    return 1;
}

static int gpu_index(device gpu) { return (int)(size_t)gpu - 1; }

static result query(device gpu, const char *name, unsigned long long *value) {
    char key[128];
    unsigned long long lost = 0;
    snprintf(key, sizeof key, "%d.lost", gpu_index(gpu));
    if (number(key, &lost) && lost) return LOST;
    snprintf(key, sizeof key, "%d.%s", gpu_index(gpu), name);
    return number(key, value) ? OK : NOT_SUPPORTED;
}

static result query_unsigned(device gpu, const char *name, unsigned *value) {
    unsigned long long wide = 0;
    result answer = query(gpu, name, &wide);
    if (answer == OK) *value = (unsigned)wide;
    return answer;
}

result nvmlInitWithFlags(unsigned flags) {
    unsigned long long gpus;
    return number("gpus", &gpus) ? OK : DRIVER_NOT_LOADED;
}
result nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(result answer) { return answer == DRIVER_NOT_LOADED ? "Driver Not Loaded" : "Simulated Error"; }

result nvmlDeviceGetCount_v2(unsigned *count) {
    unsigned long long gpus = 0;
    number("gpus", &gpus);
    *count = (unsigned)gpus;
    return OK;
}
result nvmlDeviceGetHandleByIndex_v2(unsigned index, device *gpu) {
    *gpu = (device)(size_t)(index + 1);
    return OK;
}
result nvmlDeviceGetUUID(device gpu, char *uuid, unsigned size) {
    snprintf(uuid, size, "GPU-sim-%d", gpu_index(gpu));
    return OK;
}
result nvmlDeviceGetName(device gpu, char *name, unsigned size) {
    snprintf(name, size, "Simulated H200");
    return OK;
}
result nvmlDeviceGetPciInfo_v3(device gpu, pci_info *pci) {
    memset(pci, 0, sizeof *pci);
    snprintf(pci->bus_id, sizeof pci->bus_id, "00000000:%02X:00.0", 0x3b + gpu_index(gpu));
    return OK;
}
result nvmlDeviceGetTotalEccErrors(device gpu, int kind, int counter, unsigned long long *count) {
    char name[64];
    snprintf(name, sizeof name, "ecc_%s_%s", counter ? "aggregate" : "volatile", kind ? "uncorrected" : "corrected");
    return query(gpu, name, count);
}
result nvmlDeviceGetRemappedRows(device gpu, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed) {
    result answer = query_unsigned(gpu, "rows_corrected", corrected);
    *uncorrected = *pending = *failed = 0;
    query_unsigned(gpu, "rows_uncorrected", uncorrected);
    query_unsigned(gpu, "rows_pending", pending);
    query_unsigned(gpu, "rows_failed", failed);
    return answer;
}
result nvmlDeviceGetTemperature(device gpu, int sensor, unsigned *celsius) { return query_unsigned(gpu, "temperature", celsius); }
result nvmlDeviceGetTemperatureThreshold(device gpu, int which, unsigned *celsius) {
    return which == 1 ? query_unsigned(gpu, "slowdown_temperature", celsius) : NOT_SUPPORTED;
}
result nvmlDeviceGetCurrentClocksEventReasons(device gpu, unsigned long long *reasons) { return query(gpu, "slowdown_reasons", reasons); }
result nvmlDeviceGetPowerUsage(device gpu, unsigned *milliwatts) { return query_unsigned(gpu, "power", milliwatts); }
result nvmlDeviceGetEnforcedPowerLimit(device gpu, unsigned *milliwatts) { return query_unsigned(gpu, "power_limit", milliwatts); }

result nvmlDeviceGetNvLinkState(device gpu, unsigned link, int *up) {
    char name[64];
    snprintf(name, sizeof name, "link.%u.up", link);
    return query_unsigned(gpu, name, (unsigned *)up);
}
result nvmlDeviceGetNvLinkErrorCounter(device gpu, unsigned link, int counter, unsigned long long *count) {
    static const char *names[] = {"replay", "recovery", "crc_flit", "crc_data", "ecc_data"};
    char name[64];
    if (counter < 0 || counter > 4) return INVALID;
    snprintf(name, sizeof name, "link.%u.%s", link, names[counter]);
    return query(gpu, name, count);
}

static int events_registered[64], events_told;
result nvmlEventSetCreate(void **set) {
    *set = &events_told;
    return OK;
}
result nvmlEventSetFree(void *set) { return OK; }
result nvmlDeviceGetSupportedEventTypes(device gpu, unsigned long long *types) {
    *types = 0x1f;
    return OK;
}
result nvmlDeviceRegisterEvents(device gpu, unsigned long long types, void *set) {
    events_registered[gpu_index(gpu)] |= (types & 8) != 0;
    return OK;
}
result nvmlEventSetWait_v2(void *set, event_data *event, unsigned timeout_ms) {
    char key[64], value[64];
    unsigned gpu, code, waited;
    for (waited = 0;; waited += 10) {
        snprintf(key, sizeof key, "xid.%d", events_told);
        if (text(key, value, sizeof value) && sscanf(value, "%u %u", &gpu, &code) == 2) {
            events_told++;
            if (!events_registered[gpu]) continue;
            memset(event, 0, sizeof *event);
            event->gpu = (device)(size_t)(gpu + 1);
            event->type = 8;
            event->data = code;
            return OK;
        }
        if (waited >= timeout_ms) return TIMEOUT;
        usleep(10000);
    }
}

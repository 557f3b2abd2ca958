/* A stand-in for NVIDIA's libnvidia-ml.so.1: a test double, written from the names and shapes of the calls alone.
 *
 * What it says stands in the text file named by $GPULAYER_STUB_NVML, or beside this library under its name + ".gpus".
 * The file is read anew at each count of the devices, so a test can change what happens while a worker runs.
 *
 *   driver=570.124.06            "missing": the driver is not loaded
 *   hang=1                       every call from the count of devices on never returns
 *   crash=1                      the same calls kill the process
 *   gpu; uuid=GPU-…; name=…; memory=BYTES; bus=1b; links=1,2; pids=12,34; lost=1; hang=1; pages=1; xid=79; mig=1
 *   mig; of=0; uuid=MIG-…; name=… MIG 3g.20gb; memory=BYTES; pids=12
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { OK = 0, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TOO_SMALL = 7, NOT_LOADED = 9, TIMEOUT = 10, LOST = 15 };
enum { MOST = 64, PIDS = 32 };

typedef struct device {
    unsigned index, bus, links[MOST], link_count, pids[PIDS], pid_count;
    int lost, hang, pages, mig, of, is_slice;
    unsigned long long memory, xid;
    char name[96], uuid[96];
} device;
typedef device *handle;

static device devices[MOST], slices[MOST];
static unsigned device_count, slice_count;
static unsigned long long told_xid[MOST];
static char driver[64];
static int hang_all, crash_all;

static FILE *open_file(void) {
    const char *named = getenv("GPULAYER_STUB_NVML");
    char beside[4096];
    if (!named) {
        Dl_info self;
        if (!dladdr((void *)open_file, &self)) return NULL;
        snprintf(beside, sizeof beside, "%s.gpus", self.dli_fname);
        named = beside;
    }
    return fopen(named, "r");
}

static unsigned numbers(char *text, unsigned *into, unsigned most) {
    unsigned count = 0;
    for (char *rest, *word = strtok_r(text, ",", &rest); word && count < most; word = strtok_r(NULL, ",", &rest))
        into[count++] = (unsigned)strtoul(word, NULL, 10);
    return count;
}

static void set(device *d, const char *key, char *value) {
    if (!strcmp(key, "uuid")) snprintf(d->uuid, sizeof d->uuid, "%s", value);
    else if (!strcmp(key, "name")) snprintf(d->name, sizeof d->name, "%s", value);
    else if (!strcmp(key, "memory")) d->memory = strtoull(value, NULL, 10);
    else if (!strcmp(key, "bus")) d->bus = (unsigned)strtoul(value, NULL, 16);
    else if (!strcmp(key, "links")) d->link_count = numbers(value, d->links, MOST);
    else if (!strcmp(key, "pids")) d->pid_count = numbers(value, d->pids, PIDS);
    else if (!strcmp(key, "lost")) d->lost = atoi(value);
    else if (!strcmp(key, "hang")) d->hang = atoi(value);
    else if (!strcmp(key, "pages")) d->pages = atoi(value);
    else if (!strcmp(key, "xid")) d->xid = strtoull(value, NULL, 10);
    else if (!strcmp(key, "mig")) d->mig = atoi(value);
    else if (!strcmp(key, "of")) d->of = atoi(value);
}

static int load(void) {
    FILE *file = open_file();
    if (!file) return NOT_LOADED;
    char line[1024];
    device_count = slice_count = 0;
    hang_all = crash_all = 0;
    driver[0] = 0;
    while (fgets(line, sizeof line, file)) {
        line[strcspn(line, "\n")] = 0;
        device *d = NULL;
        char *rest;
        for (char *word = strtok_r(line, ";", &rest); word; word = strtok_r(NULL, ";", &rest)) {
            while (*word == ' ') word++;
            char *value = strchr(word, '=');
            if (!value) {
                if (!strcmp(word, "gpu") && device_count < MOST) {
                    d = &devices[device_count];
                    memset(d, 0, sizeof *d);
                    d->index = device_count++;
                } else if (!strcmp(word, "mig") && slice_count < MOST) {
                    d = &slices[slice_count++];
                    memset(d, 0, sizeof *d);
                    d->is_slice = 1;
                }
                continue;
            }
            *value++ = 0;
            if (d) set(d, word, value);
            else if (!strcmp(word, "driver")) snprintf(driver, sizeof driver, "%s", value);
            else if (!strcmp(word, "hang")) hang_all = atoi(value);
            else if (!strcmp(word, "crash")) crash_all = atoi(value);
        }
    }
    fclose(file);
    return strcmp(driver, "missing") ? OK : NOT_LOADED;
}

static void misbehave(int hang) {
    if (crash_all) raise(SIGSEGV);
    while (hang || hang_all) pause();
}

#define DEVICE(d) do { misbehave((d)->hang || ((d)->is_slice && devices[(d)->of].hang)); \
    if ((d)->lost || ((d)->is_slice && devices[(d)->of].lost)) return LOST; } while (0)

static int text(char *to, unsigned length, const char *from) {
    if (strlen(from) + 1 > length) return TOO_SMALL;
    strcpy(to, from);
    return OK;
}

int nvmlInit_v2(void) { return load(); }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return load(); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { (void)code; return "stub"; }
int nvmlSystemGetDriverVersion(char *to, unsigned length) { return text(to, length, driver); }
int nvmlSystemGetNVMLVersion(char *to, unsigned length) { return text(to, length, "12.570.124.06"); }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = 12080; return OK; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    int code = load();
    misbehave(0);
    *count = device_count;
    return code;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, handle *to) {
    if (index >= device_count) return INVALID;
    *to = &devices[index];
    return OK;
}
int nvmlDeviceGetHandleByUUID(const char *uuid, handle *to) {
    for (unsigned i = 0; i < device_count; i++)
        if (!strcmp(devices[i].uuid, uuid)) { *to = &devices[i]; return OK; }
    return NOT_FOUND;
}

/* Kept by the library from the beginning, so a lost device still has them. */
int nvmlDeviceGetUUID(handle d, char *to, unsigned length) { misbehave(0); return text(to, length, d->uuid); }
int nvmlDeviceGetName(handle d, char *to, unsigned length) { DEVICE(d); return text(to, length, d->name); }
int nvmlDeviceGetIndex(handle d, unsigned *index) { *index = d->index; return OK; }

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory_v2;
int nvmlDeviceGetMemoryInfo_v2(handle d, memory_v2 *m) {
    DEVICE(d);
    m->total = m->free = d->memory;
    m->reserved = m->used = 0;
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(handle d, int *major, int *minor) { DEVICE(d); *major = 9; *minor = 0; return OK; }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char address[32]; } pci_info;
static int pci(handle d, pci_info *p) {
    memset(p, 0, sizeof *p);
    p->bus = d->bus;
    p->id = 0x233010de;
    snprintf(p->legacy, sizeof p->legacy, "0000:%02X:00.0", d->bus & 0xff);
    snprintf(p->address, sizeof p->address, "00000000:%02X:00.0", d->bus & 0xff);
    return OK;
}
int nvmlDeviceGetPciInfo_v3(handle d, pci_info *p) { DEVICE(d); return pci(d, p); }

typedef struct { unsigned pid; unsigned long long memory; unsigned gpu_instance, compute_instance; } process;
int nvmlDeviceGetComputeRunningProcesses_v3(handle d, unsigned *count, process *list) {
    DEVICE(d);
    unsigned room = *count;
    *count = d->pid_count;
    if (d->pid_count == 0) return OK;
    if (room < d->pid_count || !list) return TOO_SMALL;
    for (unsigned i = 0; i < d->pid_count; i++)
        list[i] = (process){ .pid = d->pids[i], .memory = 1 << 20, .gpu_instance = ~0u, .compute_instance = ~0u };
    return OK;
}

int nvmlDeviceGetMigMode(handle d, unsigned *now, unsigned *pending) {
    DEVICE(d);
    if (d->is_slice) return INVALID;
    *now = *pending = (unsigned)d->mig;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(handle d, unsigned *count) { DEVICE(d); *count = d->mig ? 7 : 0; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(handle d, unsigned index, handle *to) {
    DEVICE(d);
    for (unsigned i = 0; i < slice_count; i++)
        if (slices[i].of == (int)d->index && index-- == 0) { *to = &slices[i]; return OK; }
    return NOT_FOUND;
}

static int linked(handle a, handle b) {
    for (unsigned i = 0; i < a->link_count; i++)
        if (a->links[i] == b->index) return 1;
    return 0;
}
/* Of the kinds of traffic between two devices, 2 is NVLink; 0 says that it works, 5 that it is not supported. */
int nvmlDeviceGetP2PStatus(handle a, handle b, int kind, int *status) {
    DEVICE(a);
    *status = kind == 2 && linked(a, b) ? 0 : 5;
    return OK;
}

int nvmlDeviceGetRetiredPagesPendingStatus(handle d, unsigned *pending) { DEVICE(d); *pending = (unsigned)d->pages; return OK; }

/* Events: only errors, and each once per value in the file. */
typedef struct event_set { handle device; } event_set;
typedef struct { handle device; unsigned long long kind, value; unsigned gpu_instance, compute_instance; } event;
int nvmlEventSetCreate(event_set **set_out) { *set_out = calloc(1, sizeof(event_set)); return *set_out ? OK : 999; }
int nvmlDeviceRegisterEvents(handle d, unsigned long long kinds, event_set *s) {
    if (!(kinds & 0x8)) return UNSUPPORTED;
    s->device = d;
    return OK;
}
int nvmlEventSetWait_v2(event_set *s, event *e, unsigned wait_ms) {
    (void)wait_ms;
    handle d = s->device;
    if (!d || !d->xid || told_xid[d->index] == d->xid) return TIMEOUT;
    told_xid[d->index] = d->xid;
    *e = (event){ .device = d, .kind = 0x8, .value = d->xid };
    return OK;
}
int nvmlEventSetFree(event_set *s) { free(s); return OK; }

// libnvidia-ml.so.1 of the emulated GPU: what torch.cuda.device_count() asks when CUDA must not start.
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
static unsigned count(void) { const char* n = getenv("EMULATED_GPU_COUNT"); return n ? (unsigned)atoi(n) : 1u; }
int nvmlInit(void) { return 0; }
int nvmlInit_v2(void) { return 0; }
int nvmlInitWithFlags(unsigned f) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* n) { *n = count(); return 0; }
int nvmlDeviceGetCount(unsigned* n) { *n = count(); return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void** d) { if (i >= count()) return 2; *d = (void*)(size_t)(i + 1); return 0; }
int nvmlDeviceGetUUID(void* d, char* text, unsigned n) { snprintf(text, n, "GPU-65000000-0000-0000-0000-%012zx", (size_t)d); return 0; }
int nvmlDeviceGetName(void* d, char* text, unsigned n) { snprintf(text, n, "Emulated GPU"); return 0; }
int nvmlSystemGetDriverVersion(char* text, unsigned n) { snprintf(text, n, "580.00"); return 0; }
const char* nvmlErrorString(int e) { return e ? "error" : "success"; }
int nvmlDeviceGetHandleByPciBusId_v2(const char* id, void** d) { *d = (void*)1; return 0; }
int nvmlDeviceGetComputeRunningProcesses(void* d, unsigned* n, void* infos) { *n = 0; return 0; }
int nvmlDeviceGetGpuFabricInfoV(void* d, void* info) { return 3; }
int nvmlDeviceGetNvLinkRemoteDeviceType(void* d, unsigned link, void* type) { return 3; }
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void* d, unsigned link, void* info) { return 3; }
int nvmlSystemGetCudaDriverVersion_v2(int* v) { *v = 13000; return 0; }

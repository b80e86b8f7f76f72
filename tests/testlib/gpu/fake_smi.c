// SPDX-License-Identifier: Apache-2.0
// nvidia-smi: finds libnvidia-ml.so.1 by the loader, as the real one does, and lists the GPUs. Options are ignored.
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW);
  if (library == NULL) {
    fprintf(stderr, "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system: %s\n", dlerror());
    return 12;
  }
  int (*init)(void) = (int (*)(void))dlsym(library, "nvmlInit_v2");
  int (*count)(unsigned*) = (int (*)(unsigned*))dlsym(library, "nvmlDeviceGetCount_v2");
  int (*handle)(unsigned, void**) = (int (*)(unsigned, void**))dlsym(library, "nvmlDeviceGetHandleByIndex_v2");
  int (*name)(void*, char*, unsigned) = (int (*)(void*, char*, unsigned))dlsym(library, "nvmlDeviceGetName");
  int (*uuid)(void*, char*, unsigned) = (int (*)(void*, char*, unsigned))dlsym(library, "nvmlDeviceGetUUID");
  int (*driver)(char*, unsigned) = (int (*)(char*, unsigned))dlsym(library, "nvmlSystemGetDriverVersion");
  int rc = init();
  unsigned n = 0;
  char text[96], id[96];
  if (rc != 0 || count(&n) != 0) {
    fprintf(stderr, "Failed to initialize NVML: %d\n", rc);
    return rc;
  }
  driver(text, sizeof text);
  printf("Driver Version: %s\n", text);
  for (unsigned i = 0; i < n; ++i) {
    void* device;
    if (handle(i, &device) != 0) continue;
    text[0] = id[0] = 0;
    name(device, text, sizeof text);
    uuid(device, id, sizeof id);
    printf("GPU %u: %s (UUID: %s)\n", i, text, id);
  }
  return n == 0 ? 6 : 0;
}

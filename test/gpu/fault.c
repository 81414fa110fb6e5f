/* Spoils the GPU of the process that preloads it, once, when the file that TRCTL_FAULT_FILE names appears: a kernel
 * writes where nothing is mapped, in the primary context that the process uses. When the file that TRCTL_HANG_FILE names
 * appears, a kernel of two minutes takes every multiprocessor of the GPU, so that no step goes on. The file is removed first,
 * so that a process put in this one's place runs undisturbed. For run.sh only:
 *
 *   cc -shared -fPIC -O1 -o fault.so fault.c -ldl -lpthread
 *   TRCTL_FAULT_FILE=/tmp/now LD_PRELOAD=$PWD/fault.so trctl serve --device cuda
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char source[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry wild() { .reg .b64 %p; mov.u64 %p, 17592186044416; st.volatile.global.u32 [%p], 1; ret; }\n"
    ".visible .entry spin() { .reg .b64 %now, %end; .reg .pred %on; mov.u64 %end, %globaltimer; add.u64 %end, %end, 120000000000;\n"
    "AGAIN: nanosleep.u32 1000; mov.u64 %now, %globaltimer; setp.lt.u64 %on, %now, %end; @%on bra AGAIN; ret; }\n";

/* kind is what happens when the file appears that an environment variable names. */
struct kind { const char *variable, *kernel; unsigned blocks, threads; };

/* Without blocks the kernel has two for each multiprocessor, which has 2048 threads at most. */
static const struct kind kinds[] = {{"TRCTL_FAULT_FILE", "wild", 1, 1}, {"TRCTL_HANG_FILE", "spin", 0, 1024}};

/* call stops the thread at the first driver call that fails; its name and code are printed. */
#define CALL(name, type, ...)                                                       \
  do {                                                                              \
    int(*f) type = (int(*) type)dlsym(cuda, name);                                  \
    int code = f ? f(__VA_ARGS__) : -1;                                             \
    if (code) { fprintf(stderr, "fault: %s gave %d\n", name, code); return NULL; } \
  } while (0)

static void *fault(void *arg) {
  const struct kind *kind = arg;
  const char *path = getenv(kind->variable);
  while (access(path, F_OK) != 0) usleep(20000);
  unlink(path);
  void *cuda = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (!cuda) { fprintf(stderr, "fault: the process has no driver loaded\n"); return NULL; }
  int device, multiprocessors;
  void *context, *module, *function;
  CALL("cuDeviceGet", (int *, int), &device, 0);
  CALL("cuDeviceGetAttribute", (int *, int, int), &multiprocessors, 16, device); /* CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT */
  CALL("cuDevicePrimaryCtxRetain", (void **, int), &context, device);
  CALL("cuCtxSetCurrent", (void *), context);
  CALL("cuModuleLoadData", (void **, const void *), &module, source);
  CALL("cuModuleGetFunction", (void **, void *, const char *), &function, module, kind->kernel);
  fprintf(stderr, "fault: %s is launched\n", kind->kernel);
  CALL("cuLaunchKernel", (void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **),
       function, kind->blocks ? kind->blocks : 2u * (unsigned)multiprocessors, 1, 1, kind->threads, 1, 1, 0, NULL, NULL, NULL);
  return NULL;
}

__attribute__((constructor)) static void start(void) {
  for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    pthread_t thread;
    if (getenv(kinds[i].variable) && pthread_create(&thread, NULL, fault, (void *)&kinds[i]) == 0) pthread_detach(thread);
  }
}

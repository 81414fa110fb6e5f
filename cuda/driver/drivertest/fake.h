#ifndef TRCTL_FAKE_H
#define TRCTL_FAKE_H

#include "../symbols.h"

#define FAKE_MAX_CALLS 8192
#define FAKE_MAX_LAUNCHES 1024
#define FAKE_MAX_DEVICES 16
#define FAKE_MAX_PARAMS 4096
#define FAKE_NAME 64

typedef struct fake_launch {
	char kernel[FAKE_NAME];
	unsigned grid[3], block[3], cluster[3];
	unsigned shared_bytes, pdl, cooperative, param_bytes;
	int captured, replay;
	void *stream;
	unsigned char params[FAKE_MAX_PARAMS];
} fake_launch;

// What is open now, counted by the fake itself.
typedef struct fake_open {
	long contexts, device_allocs, host_allocs, reservations, mappings, streams, events, modules, graphs, execs;
} fake_open;

void fake_reset(int version, int devices, size_t memory, size_t graph_bytes, int param_bytes, int has_param_sizes);
trctl_driver *fake_table(void);
void fake_without(const char *symbol);
void fake_fail(const char *op, int nth, int code);
void fake_poison(int code);
void fake_fault(int device, int code);
void fake_missing_kernel(const char *name);
void fake_busy(int polls);
long fake_call_count(void);
const char *fake_call(long i);
long fake_launch_count(void);
const fake_launch *fake_launch_at(long i);
fake_open fake_counts(void);

#endif

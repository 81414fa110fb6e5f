// A driver table whose device is this process: memory is host memory, streams run at once, a module is a shared object.
#ifndef TRCTL_SIMT_TABLE_H
#define TRCTL_SIMT_TABLE_H

#include "../../driver/symbols.h"

// simt_table returns the table. It is never freed.
trctl_driver *simt_table(void);
// simt_backwards sets the order of threads and blocks of later launches.
void simt_backwards(int on);

#endif

#ifndef TRCTL_CUBLASLTTEST_FAKE_H
#define TRCTL_CUBLASLTTEST_FAKE_H

#include "../table.h"

trctl_cublaslt *fake_lt_table(void);
void fake_lt_reset(size_t version, size_t workspace);
void fake_lt_fail(const char *function, int status);
long fake_lt_open(void);

#endif

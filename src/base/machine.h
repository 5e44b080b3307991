/* Describes this machine, for reports. */
#pragma once

enum { MACHINE_TEXT = 160 };

/* The number of cores that this process may use, or 1 if it is unknown. */
int machine_threads(void);
/* Each writes "unknown" if the system does not provide the value. */
void machine_host(char out[MACHINE_TEXT]);
void machine_cpu(char out[MACHINE_TEXT]);   /* "AMD EPYC 7763 64-Core Processor" */
void machine_cores(char out[MACHINE_TEXT]); /* machine_threads(), as text */
void machine_now(char out[MACHINE_TEXT]);   /* the time in UTC, ISO 8601 */

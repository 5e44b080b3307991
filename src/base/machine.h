/* Describes this machine for reports. */
#pragma once

enum { MACHINE_TEXT = 160 };

/* Returns the number of cores that this process can use, or 1 if the number is unknown. */
int machine_threads(void);
/* These functions write "unknown" if the system does not provide the value. */
void machine_host(char out[MACHINE_TEXT]);
void machine_cpu(char out[MACHINE_TEXT]);   /* such as "AMD EPYC 7763 64-Core Processor" */
void machine_cores(char out[MACHINE_TEXT]); /* machine_threads() as text */
void machine_now(char out[MACHINE_TEXT]);   /* the UTC time in ISO 8601 format */

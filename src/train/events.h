/* TensorBoard event files: TFRecord framing (length, masked CRC-32C, payload, masked CRC-32C) around Event
 * protocol buffers with scalar and text summaries. Source: tensorflow/core/lib/io/record_writer.cc and
 * tensorflow/core/util/event.proto. */
#pragma once

#include <stdint.h>

#include "base/err.h"

typedef struct Events Events;

/* Creates `dir` if it does not exist, and a new events.out.tfevents.* file in it. */
Err events_open(const char *dir, Events **);
/* Writes a scalar at a step. The file is not buffered. */
Err events_scalar(Events *, const char *tag, int64_t step, double value);
/* Writes a Markdown text at a step under the tag <tag>/text_summary. */
Err events_text(Events *, const char *tag, int64_t step, const char *text);
void events_close(Events *);

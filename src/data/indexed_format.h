/* The constants of the .idx header that reader and builder share (layout: indexed.h). */
#pragma once

static const unsigned char INDEXED_MAGIC[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
enum { INDEXED_HEADER = 34 };

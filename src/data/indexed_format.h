/* Constants in the .idx header, shared by the reader and the builder. indexed.h describes the layout. */
#pragma once

static const unsigned char INDEXED_MAGIC[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};
enum { INDEXED_HEADER = 34 };

/* One string of a JSON text that a parser refuses (too deep, a lone surrogate, a number beyond
 * double), so that the object it belongs to can be told by name. Pure. */
#ifndef BELAY_REFLECTOR_PEEK_H
#define BELAY_REFLECTOR_PEEK_H

#include <stddef.h>

/* The string at path ("metadata", "name", ... up to count steps) of the object in text[0..len): on
 * the heap, NULL if there is none, or if it holds an escape (no name, UID or version does). Only
 * members on the path itself are looked at: a label that is called "name" is not metadata.name. */
char *peek_str(const char *text, size_t len, const char *const *path, size_t count);

#endif

/* Helm values: deep merge as helm-operator does it. Pure. */
#ifndef BELAY_VALUES_VALUES_H
#define BELAY_VALUES_VALUES_H

#include <jansson.h>

/* Merge over into base, in place: objects merge recursively, everything else (lists, scalars, null)
 * replaces. null stays null: helm reads it as "delete the chart's default" (case 21). Both must be
 * objects; over is borrowed and copied. */
void values_merge(json_t *base, const json_t *over);

#endif

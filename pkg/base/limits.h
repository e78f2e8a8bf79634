/* A ceiling on every input from outside; docs/limits.md lists them for people. Bytes unless the
 * name says otherwise. */
#ifndef BELAY_BASE_LIMITS_H
#define BELAY_BASE_LIMITS_H

#define LIMIT_BODY_BYTES       (64U << 20)  /* an API reply: 500 objects of 100 KB may come */
#define LIMIT_WATCH_LINE_BYTES (4U << 20)   /* a watch event: etcd takes 1.5 MB, JSON adds */
#define LIMIT_LIST_PAGE        500          /* objects a page, client-go's default */
#define LIMIT_INDEX_BYTES      (64U << 20)  /* a chart repository's index.yaml */
#define LIMIT_CHART_BYTES      (20U << 20)  /* a chart archive; helm's records stop near 1 MB */
#define LIMIT_VALUES_BYTES     (4U << 20)   /* a values document, its aliases written out */
#define LIMIT_HELM_OUTPUT      (256U << 10) /* kept of a child's stdout and of its stderr */
#define LIMIT_MESSAGE_BYTES    1024         /* a condition's message, an Event's note (API) */
#define LIMIT_DEPTH            64           /* nesting of YAML and JSON from outside */
#define LIMIT_CREDENTIAL_BYTES (1U << 20)   /* kubeconfig, token, CA file, exec plugin output */
#define LIMIT_RECORD_BYTES     (8U << 20)   /* a Helm record, unpacked */
#define LIMIT_CACHE_BYTES      (1U << 30)   /* charts kept on disk */

#endif

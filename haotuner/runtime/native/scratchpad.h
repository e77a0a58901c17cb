/* Memory of a thread for what a loop puts between two of its steps: too large for the stack of a server's own threads.
 *
 * A thread has each room from its first use until it ends or the library is unmapped. Pages that no loop touches take no memory. As
 * thread-local arrays they would: the dynamic linker writes zeros to all of a library's before a thread reads the first one. */
#ifndef HT_ROOM_H_
#define HT_ROOM_H_

#include <stddef.h>

typedef enum {
  HT_ROOM_CONV,
  HT_ROOM_DIRECT,
  HT_ROOM_FINISH,
  HT_ROOM_LINES,
  HT_ROOM_PRODUCT,
  HT_ROOM_PRODUCT_TYPED,
  HT_ROOM_SMALL,
  HT_ROOM_TURNED,
  HT_ROOM_TYPED,
  HT_ROOM_TYPED_IMAGE,
  HT_ROOM_TYPED_LINES,
  HT_ROOM_WINOGRAD,
  HT_ROOMS
} ht_room_of;

/* `bytes` of the calling thread, the same at every call, from a line of cache on; zero at first. Ends the process where there is no memory. */
__attribute__((const)) void* ht_room(ht_room_of which, size_t bytes);

#endif /* HT_ROOM_H_ */

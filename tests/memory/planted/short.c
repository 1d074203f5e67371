// Touches 500 MiB and ends, all in about 0.3 s.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int main(void) {
    size_t size = 500UL << 20;
    char *memory = malloc(size);
    memset(memory, 1, size);
    usleep(50000);
    return memory[size / 2] - 1;
}

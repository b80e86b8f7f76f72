// SPDX-License-Identifier: Apache-2.0
// A library of the driver that nobody calls in a test: only its name and SONAME matter.
int fake_library(void) { return 0; }

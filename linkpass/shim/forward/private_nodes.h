/* The nodes in which the symbols of private.def are exported: releases seen so far, and room for those to
 * come. */
/* clang-format off */
#define LP_PRIVATE_NODES(each, symbol) \
    each(25, symbol) each(26, symbol) each(30, symbol) each(31, symbol) each(32, symbol) each(33, symbol) \
    each(34, symbol) each(50, symbol) each(51, symbol) each(52, symbol) each(53, symbol) each(54, symbol) \
    each(55, symbol) each(56, symbol) each(57, symbol) each(58, symbol) each(59, symbol) each(60, symbol) \
    each(61, symbol) each(62, symbol) each(63, symbol) each(64, symbol) each(65, symbol) each(66, symbol) \
    each(67, symbol) each(68, symbol) each(69, symbol) each(70, symbol)

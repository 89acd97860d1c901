#!/bin/bash
# The version nodes of later rdma-core releases, which programs and drivers built against them need: public
# ones from IBVERBS_1.15 on, private ones by the number of the driver interface.
set -euo pipefail
library=${VERBENA_BUILD:?the build folder}/lib/libibverbs.so.1

exported=$(readelf --dyn-syms -W "$library" | awk '$1 ~ /^[0-9]+:$/ && NF >= 8 && $7 != "UND" { print $8 }')
missing=0
expect() {  # node, symbols
  local node=$1 name
  shift
  for name in "$@"; do
    grep -qxE "$name@@?$node" <<< "$exported" || { echo "newer_nodes: no $name@$node" >&2; missing=1; }
  done
}
names_in() { sed -nE "s/^([a-zA-Z0-9_]+)@@?$1\$/\1/p" <<< "$exported" | sort; }

expect IBVERBS_1.15 ibv_alloc_dmah ibv_dealloc_dmah ibv_reg_mr_ex
expect IBVERBS_1.16 ibv_dm_export_dmabuf_fd ibv_query_port_speed
expect IBVERBS_1.17 ibv_alloc_buf ibv_free_buf ibv_reg_buf_mr
expect IBVERBS_1.18 _ibv_query_comp_cntr_caps ibv_create_comp_cntr ibv_destroy_comp_cntr ibv_export_buf_dmabuf_fd \
  ibv_inc_comp_cntr ibv_inc_err_comp_cntr ibv_qp_attach_comp_cntr ibv_read_comp_cntr ibv_read_err_comp_cntr \
  ibv_set_comp_cntr ibv_set_err_comp_cntr

# Each private node has all symbols of the one before it, except the registration with its number.
previous=34
for node in 57 59 64 65; do
  expect "IBVERBS_PRIVATE_$node" "verbs_register_driver_$node"
  # shellcheck disable=SC2046
  expect "IBVERBS_PRIVATE_$node" $(names_in "IBVERBS_PRIVATE_$previous" | grep -v "^verbs_register_driver_\|^IBVERBS")
  previous=$node
done
expect IBVERBS_PRIVATE_57 ibv_cmd_create_cq_ex2 ibv_wr_opcode_str
expect IBVERBS_PRIVATE_59 ibv_cmd_alloc_dmah ibv_cmd_free_dmah ibv_cmd_reg_mr_ex ibv_cmd_export_dmabuf_fd \
  ibv_cmd_query_port_speed
expect IBVERBS_PRIVATE_64 ibv_dmabuf_heap_alloc ibv_dmabuf_heap_free ibv_dmabuf_heap_destroy \
  ibv_dmabuf_heap_cc_shared_init
expect IBVERBS_PRIVATE_65 ibv_cmd_create_comp_cntr ibv_cmd_destroy_comp_cntr ibv_cmd_inc_comp_cntr ibv_cmd_inc_err_comp_cntr \
  ibv_cmd_qp_attach_comp_cntr ibv_cmd_query_comp_cntr_caps ibv_cmd_read_comp_cntr ibv_cmd_read_err_comp_cntr \
  ibv_cmd_set_comp_cntr ibv_cmd_set_err_comp_cntr
for count in 34:73 57:73 59:78 64:82 65:92; do
  found=$(names_in "IBVERBS_PRIVATE_${count%:*}" | grep -vc '^IBVERBS' || true)
  [ "$found" = "${count#*:}" ] || { echo "newer_nodes: $found symbols in IBVERBS_PRIVATE_${count%:*}" >&2; missing=1; }
done
[ "$missing" = 0 ] || exit 1
echo "newer_nodes: IBVERBS_1.15 to 1.18, private nodes 57, 59, 64 and 65"

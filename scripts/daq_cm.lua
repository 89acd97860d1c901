-- A Wireshark dissector for the connection messages between FPGA boards and hosts (UDP 17185 and 17186).
-- tshark -X lua_script:scripts/daq_cm.lua -r FILE
local cm = Proto("daqcm", "Detector readout connection manager")

local requests = { [0] = "NULL", "OPEN_QP", "SEND_QP_INFO", "MODIFY_QP_RTS", "CLOSE_QP", "FETCH", nil, "ERROR" }
local acks = { [0] = "NULL", "ACK", "NO_QP", "NAK", nil, nil, nil, "ERROR" }
local kinds = { [0] = "SEND", "WRITE" }

local f = cm.fields
f.info_valid = ProtoField.bool("daqcm.info_valid", "Request valid", 8, nil, 0x01)
f.request = ProtoField.uint8("daqcm.request", "Request", base.DEC, requests, 0x0E)
f.ack_valid = ProtoField.bool("daqcm.ack_valid", "Response valid", 8, nil, 0x10)
f.ack = ProtoField.uint8("daqcm.ack", "Response", base.DEC, acks, 0xE0)
for side, name in pairs({ loc = "Sender's ", rem = "Receiver's " }) do
  f[side .. "_qpn"] = ProtoField.uint24("daqcm." .. side .. ".qpn", name .. "QPN", base.DEC)
  f[side .. "_psn"] = ProtoField.uint24("daqcm." .. side .. ".psn", name .. "PSN", base.DEC)
  f[side .. "_rkey"] = ProtoField.uint32("daqcm." .. side .. ".rkey", name .. "R_Key", base.HEX)
  f[side .. "_address"] = ProtoField.uint64("daqcm." .. side .. ".address", name .. "address", base.HEX)
  f[side .. "_ip"] = ProtoField.ipv4("daqcm." .. side .. ".ip", name .. "IP")
end
f.port = ProtoField.uint16("daqcm.port", "Port for responses")
f.tx_valid = ProtoField.bool("daqcm.transmit.valid", "Transmit command valid", 8, nil, 0x01)
f.tx_start = ProtoField.bool("daqcm.transmit.start", "Start", 8, nil, 0x02)
f.tx_immediate = ProtoField.bool("daqcm.transmit.immediate", "Immediate", 8, nil, 0x04)
f.tx_kind = ProtoField.uint8("daqcm.transmit.kind", "Kind", base.DEC, kinds, 0x08)
f.tx_length = ProtoField.uint32("daqcm.transmit.length", "Bytes of a message")
f.tx_count = ProtoField.uint32("daqcm.transmit.count", "Messages")
f.tx_gap = ProtoField.uint32("daqcm.transmit.gap", "Gap in clock cycles")

local function add_side(tree, buffer, side, at)
  tree:add(f[side .. "_qpn"], buffer(at, 3))
  tree:add(f[side .. "_psn"], buffer(at + 4, 3))
  tree:add(f[side .. "_rkey"], buffer(at + 7, 4))
  tree:add(f[side .. "_address"], buffer(at + 11, 8))
  tree:add(f[side .. "_ip"], buffer(at + 19, 4))
end

function cm.dissector(buffer, packet, root)
  if buffer:len() ~= 64 then return 0 end
  local flags, command = buffer(0, 1):uint(), buffer(51, 1):uint()
  local request, ack = requests[math.floor(flags / 2) % 8] or "unknown", acks[math.floor(flags / 32)] or "unknown"
  local text = request
  if math.floor(flags / 16) % 2 == 1 then text = text .. " " .. ack end
  if command % 2 == 1 then
    text = string.format("transmit %d x %d bytes", buffer(56, 4):uint(), buffer(52, 4):uint())
  end
  packet.cols.protocol = "DAQ-CM"
  packet.cols.info = string.format("%s, QP %d to %d", text, buffer(2, 3):uint(), buffer(26, 3):uint())

  local tree = root:add(cm, buffer(), "Detector readout connection manager: " .. text)
  for _, field in ipairs({ f.info_valid, f.request, f.ack_valid, f.ack }) do tree:add(field, buffer(0, 1)) end
  add_side(tree, buffer, "loc", 2)
  add_side(tree, buffer, "rem", 26)
  tree:add(f.port, buffer(49, 2))
  for _, field in ipairs({ f.tx_valid, f.tx_start, f.tx_immediate, f.tx_kind }) do tree:add(field, buffer(51, 1)) end
  tree:add(f.tx_length, buffer(52, 4))
  tree:add(f.tx_count, buffer(56, 4))
  tree:add(f.tx_gap, buffer(60, 4))
  return 64
end

local ports = DissectorTable.get("udp.port")
ports:add(17185, cm)
ports:add(17186, cm)

-- The generator's data are counting words. Without this, tshark's heuristics sometimes take them for other protocols.
local data = Proto("daqdata", "Words of a board's generator")
data.fields.first = ProtoField.uint32("daqdata.first", "First word")

data:register_heuristic("infiniband.payload", function(buffer, _, root)
  if buffer:len() < 8 or buffer(4, 4):le_uint() ~= (buffer(0, 4):le_uint() + 1) % 2 ^ 32 then return false end
  root:add(data, buffer()):add_le(data.fields.first, buffer(0, 4))
  return true
end)

-- Append blocks of the open publication to todo. Sent again it adds nothing that waits there still, unless it is told
-- that they are new: many blocks in pieces would be compared with all before them. A long todo is not compared either:
-- a block that is there twice is played twice, and the first answer counts.
-- KEYS: epoch progress todo      ARGV: token publication {blocks} new
local COMPARED = 65536
local publication, blocks = argument(), list()
local new = argument() == '1'
if redis.call('HGET', KEYS[2], 'publication') ~= publication then return 0 end
local waiting, fresh = {}, {}
local compared = not new and redis.call('LLEN', KEYS[3]) <= COMPARED
for _, entry in ipairs(compared and redis.call('LRANGE', KEYS[3], 0, -1) or {}) do waiting[entry] = true end
for _, block in ipairs(blocks) do
  if not waiting[block] then fresh[#fresh + 1] = block end
end
in_pieces('RPUSH', KEYS[3], fresh)
return 1

-- Append blocks of the open publication to todo. Sent again it adds nothing that waits there still, unless it is told
-- that they are new: many blocks in pieces would be compared with all before them.
-- KEYS: epoch progress todo      ARGV: token publication {blocks} new
local publication, blocks = argument(), list()
local new = argument() == '1'
if redis.call('HGET', KEYS[2], 'publication') ~= publication then return 0 end
local waiting, fresh = {}, {}
for _, entry in ipairs(new and {} or entries(KEYS[3], 268435456, -1)) do waiting[entry] = true end
for _, block in ipairs(blocks) do
  if not waiting[block] then fresh[#fresh + 1] = block end
end
in_pieces('RPUSH', KEYS[3], fresh)
return 1

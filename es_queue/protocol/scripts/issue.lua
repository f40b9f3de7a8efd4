-- Put blocks into todo, with the header of the table that has their rows. Sent again it issues them again: a block that
-- is there twice is played twice, and the first result counts.
-- KEYS: epoch progress task todo      ARGV: token publication task front seconds {blocks}
local publication, task, front, seconds, blocks = argument(), argument(), argument() == '1', argument(), list()
if redis.call('HGET', KEYS[2], 'publication') ~= publication then return 0 end
if task ~= '' then redis.call('SET', KEYS[3], task, 'KEEPTTL') end
local items = blocks
if front then
  items = {}
  for i = #blocks, 1, -1 do items[#items + 1] = blocks[i] end
end
in_pieces(front and 'LPUSH' or 'RPUSH', KEYS[4], items)
redis.call('EXPIRE', KEYS[4], seconds) -- opening has removed the list, and with it when it expires
return 1

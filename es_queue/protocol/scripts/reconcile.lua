-- Put to the head of todo every unanswered slot that is neither in todo nor in a claim of the living.
-- KEYS: epoch progress todo workers attempts
-- ARGV: token publication prefix block grace {kind start stop ...} {kind slot ...} {workers to give way} all {kind start stop ...}
-- all: '1' to issue again whatever nobody holds, '0' for no more of it than the ranges that follow
local publication, prefix = argument(), argument()
local size, grace = tonumber(argument()), argument() == '1'
local ranges, suspects, give_way = list(), list(), list()
local all, only = argument() == '1', list()
if redis.call('HGET', KEYS[2], 'publication') ~= publication then return false end

local unanswered, owed, single, total = {}, {}, {}, 0
for i = 1, #ranges, 3 do
  local kind = ranges[i]
  unanswered[kind] = unanswered[kind] or {}
  owed[kind] = owed[kind] or {}
  for slot = tonumber(ranges[i + 1]), tonumber(ranges[i + 2]) - 1 do
    unanswered[kind][slot] = true
    owed[kind][slot] = true
    total = total + 1
  end
end
for i = 1, #suspects, 2 do single[suspects[i] .. ' ' .. suspects[i + 1]] = true end

-- Only of an entry that is a block of the open publication; longer and larger ones than any of ours count for nothing.
local function parse(entry)
  if #entry > 120 then return nil end
  local of, kind, start, stop = string.match(entry, '^(%S+) (%a+) (%d+) (%d+)$')
  if of ~= publication or not unanswered[kind] then return nil end
  start, stop = tonumber(start), tonumber(stop)
  if start >= stop or stop > 2147483648 or stop - start > 4096 then return nil end
  return kind, start, stop
end

-- Crosses the block's slots off the owed ones; true when at least one of them is unanswered. All entries together are
-- followed for a bounded number of slots, so that made-up blocks cannot hold up the server.
local left = 2 * total + 1048576
local function cross_off(entry)
  local kind, start, stop = parse(entry)
  local is_unanswered = false
  left = left - ((stop or 0) - (start or 0))
  if left < 0 then return false end
  for slot = start or 0, (stop or 0) - 1 do
    owed[kind][slot] = nil
    is_unanswered = is_unanswered or unanswered[kind][slot] == true
  end
  return is_unanswered
end

-- No todo of ours is longer: a block of one slot for each that is owed, a copy of it, and what others gave back.
local waiting, others = {}, 0
for _, entry in ipairs(entries(KEYS[3], 65536 + 2 * total)) do
  if cross_off(entry) then waiting[#waiting + 1] = entry else others = others + 1 end
end
if others > 0 then
  redis.call('UNLINK', KEYS[3])
  in_pieces('RPUSH', KEYS[3], waiting)
end

-- What a worker holds: one or two blocks.
local function blocks_of(key)
  local held, found = redis.pcall('LRANGE', key, 0, 99), {}
  if held.err then redis.call('UNLINK', key) end
  for _, entry in ipairs(held) do
    if #entry <= 120 and string.match(entry, '^%S+ %a+ %d+ %d+$') then found[#found + 1] = entry end
  end
  return found
end

local claims, dead = {}, {}
for _, worker in ipairs(members(KEYS[4])) do
  local key, life = prefix .. 'claims:' .. worker, prefix .. 'worker:' .. worker
  local held = blocks_of(key)
  if grace or redis.call('EXISTS', life) == 1 then
    local late = redis.pcall('HGET', life, 'late')
    local is_count = type(late) == 'string' and #late <= 12 and string.match(late, '^%d+$')
    claims[#claims + 1] = { worker, held, is_count and tonumber(late) or 0 }
    for _, entry in ipairs(held) do cross_off(entry) end
  else
    dead[#dead + 1] = { worker, held }
    redis.call('UNLINK', key)
    redis.call('SREM', KEYS[4], worker)
    local kind, start, stop = parse(held[1] or '')
    for slot = start or 0, (stop or 0) - 1 do
      if unanswered[kind][slot] then redis.call('HINCRBY', KEYS[5], kind .. ' ' .. slot .. ' deaths', 1) end
    end
  end
end

local again = {}
for i = 1, #only, 3 do
  again[only[i]] = again[only[i]] or {}
  for slot = tonumber(only[i + 1]), tonumber(only[i + 2]) - 1 do again[only[i]][slot] = true end
end

-- Contiguous slots of the ranges for which test(kind, slot) holds, at most ``most`` a run; a suspect stands alone.
local function runs(most, test, each)
  for i = 1, #ranges, 3 do
    local kind, slot, last = ranges[i], tonumber(ranges[i + 1]), tonumber(ranges[i + 2])
    while slot < last do
      local stop = slot + 1
      if test(kind, slot) then
        while stop < last and stop - slot < most and test(kind, stop)
          and not single[kind .. ' ' .. slot] and not single[kind .. ' ' .. stop] do stop = stop + 1 end
        each(kind, slot, stop)
      end
      slot = stop
    end
  end
end

local nobody, blocks, count = {}, {}, 0
runs(4096, function(kind, slot) return owed[kind][slot] end, function(kind, start, stop)
  for _, part in ipairs({ kind, start, stop }) do nobody[#nobody + 1] = part end
end)
runs(size, function(kind, slot) return owed[kind][slot] and (all or (again[kind] and again[kind][slot])) end, function(kind, start, stop)
  blocks[#blocks + 1] = publication .. ' ' .. kind .. ' ' .. start .. ' ' .. stop
  count = count + stop - start
end)
local head = {}
for i = #blocks, 1, -1 do head[#head + 1] = blocks[i] end
in_pieces('LPUSH', KEYS[3], head)

if #give_way > 0 then
  redis.call('HSET', KEYS[2], 'give_way', table.concat(give_way, ' '))
else
  redis.call('HDEL', KEYS[2], 'give_way')
end
return { count, redis.call('LLEN', KEYS[3]), claims, dead, nobody }

-- Put to the head of todo every unanswered slot that is neither in todo nor in a claim of the living.
-- KEYS: epoch progress todo workers attempts
-- ARGV: token publication prefix block grace {kind start stop ...} {kind slot ...} {workers to give way} {workers dismissed} all {kind start stop ...}
-- all: '1' to issue again whatever nobody holds, '0' for no more of it than the ranges that follow
local publication, prefix = argument(), argument()
local size, grace = tonumber(argument()), argument() == '1'
local ranges, suspects, give_way, dismissed = list(), list(), list(), {}
for _, worker in ipairs(list()) do dismissed[worker] = true end
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

local function parts(entry)
  if #entry <= LONGEST_BLOCK then return string.match(entry, '^(%S+) (%a+) (%d+) (%d+)$') end
end
local function parse(entry)
  local of, kind, start, stop = parts(entry)
  if of ~= publication or not unanswered[kind] then return nil end
  start, stop = tonumber(start), tonumber(stop)
  -- Past 2^53 a loop would never end.
  if start >= stop or stop > 2147483648 or stop - start > 4096 then return nil end
  return kind, start, stop
end

-- Crosses the block's slots off the owed ones; true when at least one of them is unanswered. Blocks that somebody made up
-- may name each slot a million times: after that many slots no block holds any.
local left = 2 * total + 1048576
local function cross_off(entry)
  local kind, start, stop = parse(entry)
  local wanted = false
  left = left - ((stop or 0) - (start or 0))
  if left < 0 then return false end
  for slot = start or 0, (stop or 0) - 1 do
    owed[kind][slot] = nil
    wanted = wanted or unanswered[kind][slot] == true
  end
  return wanted
end

-- No honest todo is longer than this: a block of one slot for each that is owed, a copy of it, and what others gave back.
local waiting, strange = {}, {}
for _, entry in ipairs(entries(KEYS[3], 67108864 + 64 * total, 65536 + 2 * total)) do
  local whose = cross_off(entry) and waiting or strange
  whose[#whose + 1] = entry
end
if #strange > 100 or #strange * #waiting > 100000 then -- each LREM looks at the whole list
  redis.call('UNLINK', KEYS[3])
  in_pieces('RPUSH', KEYS[3], waiting)
else
  for _, entry in ipairs(strange) do redis.call('LREM', KEYS[3], 1, entry) end
end

-- What a worker holds: its newest hundred entries, and of all workers together no more than can be. A longer list is cut,
-- and one that is too large even then is removed.
local MOST_HELD = 100
local room, room_bytes = 50000, 16777216
local function held_by(key)
  local length = redis.pcall('LLEN', key)
  if length == 0 or room <= 0 or room_bytes <= 0 then return {} end
  if type(length) == 'number' and length > MOST_HELD then redis.call('LTRIM', key, -MOST_HELD, -1) end
  local held = entries(key, 65536, MOST_HELD)
  room = room - #held
  for _, entry in ipairs(held) do room_bytes = room_bytes - #entry end
  return held
end

-- Of that, what is a block.
local function blocks_in(held)
  local found = {}
  for _, entry in ipairs(held) do
    if parts(entry) then found[#found + 1] = entry end
  end
  return found
end

-- Late answers as a worker counts them; 0 for what is no count.
local function late_of(life)
  local length = redis.pcall('HSTRLEN', life, 'late')
  if type(length) == 'table' then
    redis.call('UNLINK', life)
  elseif length > 0 and length <= 12 then
    return tonumber(string.match(redis.call('HGET', life, 'late'), '^%d+$') or '0')
  end
  return 0
end

local claims, dead = {}, {}
local counted = 65536 -- deaths of slots that one look may count
for _, worker in ipairs(members(KEYS[4])) do
  local key, life = prefix .. 'claims:' .. worker, prefix .. 'worker:' .. worker
  local held = held_by(key)
  if dismissed[worker] and redis.call('EXISTS', life) == 1 then
    redis.call('UNLINK', key) -- it may live on and claim more: what it holds is owed all the same
  elseif grace or redis.call('EXISTS', life) == 1 then
    claims[#claims + 1] = { worker, blocks_in(held), late_of(life) }
    for _, entry in ipairs(held) do cross_off(entry) end
  else
    if dismissed[worker] then held = {} end -- its end is no sign that a slot kills workers
    dead[#dead + 1] = { worker, blocks_in(held) }
    redis.call('UNLINK', key)
    redis.call('SREM', KEYS[4], worker)
    local kind, start, stop = parse(held[1] or '')
    counted = counted - ((stop or 0) - (start or 0))
    for slot = start or 0, (stop or 0) - 1 do
      if counted >= 0 and unanswered[kind][slot] then redis.pcall('HINCRBY', KEYS[5], kind .. ' ' .. slot .. ' deaths', 1) end
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
